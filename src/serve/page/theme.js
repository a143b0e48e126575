// theme.js: runs before the page is drawn, so that a dark page never flashes white.
"use strict";
const theme = localStorage.getItem("saccade.theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
