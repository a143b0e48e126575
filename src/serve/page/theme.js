// theme.js: sets the theme before the first paint, so that a dark page does not flash white.
"use strict";
const theme = localStorage.getItem("saccade.theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
