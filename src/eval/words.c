/* words.c: see the header. Common English words, ASCII and lower case. A noun belongs to one
 * category only, so that "which kind of thing is it" has one answer. */
#include "eval/words.h"

#include <assert.h>
#include <stddef.h>

static const char *const adjectives[] = {
    "able",     "aged",     "agile",    "airy",    "alert",   "amber",   "ample",    "ancient",
    "angular",  "arid",     "aromatic", "artful",  "ashen",   "austere", "autumnal", "bald",
    "balmy",    "bare",     "bashful",  "beaming", "bitter",  "blank",   "blazing",  "bleak",
    "blithe",   "blue",     "blunt",    "bold",    "brave",   "brief",   "bright",   "brisk",
    "brittle",  "broad",    "bronze",   "brown",   "bulky",   "calm",    "candid",   "careful",
    "charming", "cheerful", "chilly",   "civil",   "clean",   "clear",   "clever",   "cloudy",
    "coarse",   "cold",     "compact",  "copious", "coral",   "cosy",    "crafty",   "creamy",
    "crimson",  "crisp",    "curious",  "curly",   "daring",  "dark",    "dazzling", "deep",
    "delicate", "dense",    "dim",      "distant", "dizzy",   "docile",  "drowsy",   "dry",
    "dusky",    "dusty",    "eager",    "early",   "earnest", "earthy",  "elastic",  "elegant",
    "emerald",  "empty",    "even",     "exact",   "faint",   "fair",    "faithful", "famous",
    "fancy",    "feathery", "fertile",  "festive", "fiery",   "fine",    "firm",     "flat",
    "floral",   "fluffy",   "fond",     "formal",  "fragile", "frank",   "fresh",    "frosty",
    "frugal",   "gaunt",    "gentle",   "giant",   "gilded",  "glad",    "gleaming", "glossy",
    "golden",   "graceful", "grand",    "grave",   "green",   "grey",    "handy",    "happy",
    "hardy",    "hasty",    "hazel",    "hearty",  "heavy",   "hidden",  "hollow",   "honest",
    "humble",   "humid",    "icy",      "ideal",   "idle",    "inland",  "ivory",    "jolly",
    "jovial",   "keen",     "kind",     "knotty",  "lanky",   "large",   "late",     "lavish",
    "lazy",     "lean",     "level",    "light",   "lilac",   "lively",  "lofty",    "lone",
    "loud",     "loyal",    "lucid",    "lunar",   "mellow",  "merry",   "mild",     "misty",
    "modest",   "mossy",    "muddy",    "muted",   "narrow",  "neat",    "nimble",   "noble",
    "noisy",    "oaken",    "odd",      "olive",   "opal",    "orderly", "ornate",   "oval",
    "pale",     "patient",  "pearly",   "placid",  "plain",   "plump",   "polite",   "proud",
    "prudent",  "pure",     "quaint",   "quick",   "quiet",   "rapid",   "rare",     "ready",
    "regal",    "remote",   "robust",   "rosy",    "rough",   "round",   "rugged",   "russet",
    "rustic",   "sandy",    "scarlet",  "serene",  "shady",   "sharp",   "shiny",    "shy",
    "silent",   "silken",   "silver",   "simple",  "sincere", "sleek",   "slender",  "slow",
    "smooth",   "snowy",    "sober",    "soft",    "solemn",  "solid",   "sparse",   "spicy",
    "spotless", "steady",   "stern",    "stony",   "stout",   "sturdy",  "subtle",   "sunny",
    "supple",   "swift",    "tame",     "tawny",   "teal",    "tender",  "thrifty",  "tidy",
    "timid",    "tiny",     "tranquil", "upright", "vast",    "velvet",  "violet",   "vivid",
    "warm",     "wary",     "wavy",     "wild",    "windy",   "wise",    "witty",    "woody",
    "young",    "zesty",
};
static const char *const verbs[] = {
    "accept",     "admire",     "adopt",     "adorn",    "advise",   "announce", "answer",
    "approach",   "arrange",    "ask",       "assemble", "attach",   "avoid",    "await",
    "bake",       "balance",    "bend",      "bind",     "bless",    "block",    "borrow",
    "bounce",     "bring",      "brush",     "build",    "buy",      "call",     "carry",
    "carve",      "catch",      "celebrate", "change",   "charge",   "chase",    "check",
    "choose",     "claim",      "clean",     "climb",    "collect",  "colour",   "combine",
    "compare",    "complete",   "consider",  "consult",  "copy",     "correct",  "count",
    "cover",      "cross",      "cultivate", "cut",      "dance",    "deal",     "decorate",
    "defend",     "deliver",    "describe",  "design",   "dig",      "discover", "discuss",
    "display",    "divide",     "drag",      "draw",     "dream",    "drive",    "drop",
    "dry",        "earn",       "edit",      "embrace",  "empty",    "encircle", "encourage",
    "enjoy",      "enter",      "escort",    "examine",  "exchange", "expect",   "explain",
    "explore",    "fasten",     "favour",    "feed",     "fetch",    "fill",     "find",
    "finish",     "fix",        "flatten",   "fold",     "follow",   "forget",   "forgive",
    "frame",      "free",       "gather",    "gild",     "give",     "glue",     "grab",
    "greet",      "grind",      "grow",      "guard",    "guess",    "guide",    "hand",
    "hang",       "harvest",    "haul",      "hear",     "heat",     "help",     "hide",
    "hire",       "hoist",      "hold",      "honour",   "hunt",     "identify", "ignore",
    "illustrate", "imagine",    "imitate",   "improve",  "inspect",  "install",  "invent",
    "invite",     "join",       "judge",     "keep",     "kick",     "knit",     "label",
    "launch",     "lead",       "lean",      "learn",    "leave",    "lend",     "lift",
    "light",      "like",       "link",      "list",     "load",     "lock",     "lose",
    "love",       "lower",      "mail",      "make",     "manage",   "map",      "mark",
    "match",      "measure",    "melt",      "mend",     "mention",  "mind",     "miss",
    "mix",        "model",      "move",      "name",     "notice",   "nudge",    "obey",
    "observe",    "offer",      "open",      "order",    "organise", "outline",  "own",
    "pack",       "paint",      "park",      "pass",     "patch",    "pay",      "peel",
    "perform",    "pick",       "place",     "plan",     "plant",    "play",     "plough",
    "point",      "polish",     "pour",      "praise",   "prefer",   "prepare",  "present",
    "press",      "print",      "produce",   "promise",  "promote",  "protect",  "prove",
    "publish",    "pull",       "push",      "question", "race",     "raise",    "reach",
    "read",       "receive",    "recommend", "record",   "reflect",  "refuse",   "regard",
    "release",    "remember",   "remind",    "remove",   "rent",     "repair",   "repeat",
    "replace",    "reply",      "report",    "rescue",   "respect",  "rest",     "restore",
    "return",     "reveal",     "ride",      "ring",     "rinse",    "roast",    "roll",
    "row",        "rub",        "sail",      "salute",   "save",     "scatter",  "scrub",
    "seal",       "search",     "sell",      "send",     "separate", "serve",    "settle",
    "sew",        "shake",      "shape",     "share",    "sharpen",  "shelter",  "shine",
    "ship",       "shorten",    "show",      "shut",     "sing",     "sketch",   "slice",
    "smell",      "smooth",     "solve",     "sort",     "sow",      "split",    "spread",
    "squeeze",    "stack",      "stamp",     "start",    "stitch",   "stop",     "store",
    "straighten", "stretch",    "study",     "supply",   "support",  "surprise", "surround",
    "sweep",      "swing",      "taste",     "teach",    "tear",     "tend",     "test",
    "thank",      "throw",      "tie",       "touch",    "tour",     "trace",    "trade",
    "train",      "treat",      "trim",      "trust",    "try",      "tune",     "turn",
    "twist",      "understand", "unfold",    "unpack",   "unwrap",   "use",      "value",
    "visit",      "wait",       "wake",      "want",     "warm",     "warn",     "wash",
    "watch",      "water",      "wave",      "wear",     "weave",    "weigh",    "welcome",
    "whisper",    "win",        "wipe",      "wish",     "wonder",   "wrap",     "write",
};
static const char *const animals[] = {
    "badger",  "bat",        "bear",        "beaver",    "bee",       "beetle",  "bison",
    "boar",    "buck",       "buffalo",     "butterfly", "camel",     "canary",  "caribou",
    "carp",    "cat",        "caterpillar", "cheetah",   "chipmunk",  "cicada",  "clam",
    "cobra",   "cod",        "condor",      "cormorant", "cougar",    "cow",     "coyote",
    "crab",    "crane",      "cricket",     "crow",      "deer",      "dingo",   "dog",
    "dolphin", "donkey",     "dove",        "dragonfly", "duck",      "eagle",   "eel",
    "egret",   "elephant",   "elk",         "emu",       "falcon",    "ferret",  "finch",
    "firefly", "flamingo",   "fox",         "frog",      "gazelle",   "gecko",   "gibbon",
    "giraffe", "goat",       "goose",       "gopher",    "grouse",    "gull",    "hamster",
    "hare",    "hawk",       "hedgehog",    "heron",     "herring",   "hippo",   "horse",
    "hyena",   "ibis",       "iguana",      "jackal",    "jaguar",    "jay",     "kangaroo",
    "kestrel", "kingfisher", "kitten",      "koala",     "lark",      "lemming", "lemur",
    "leopard", "lion",       "lizard",      "llama",     "lobster",   "lynx",    "magpie",
    "mallard", "mammoth",    "marmot",      "marten",    "mole",      "moose",   "moth",
    "mouse",   "mule",       "newt",        "ocelot",    "octopus",   "orca",    "osprey",
    "ostrich", "otter",      "owl",         "oyster",    "panther",   "parrot",  "pelican",
    "penguin", "pheasant",   "pigeon",      "pony",      "porcupine", "possum",  "puffin",
    "puma",    "quail",      "rabbit",      "raccoon",   "raven",     "robin",   "salmon",
    "seal",    "shark",      "sheep",       "shrew",     "shrimp",    "skunk",   "sloth",
    "snail",   "sparrow",    "spider",      "squid",     "squirrel",  "stork",   "swallow",
    "swan",    "tapir",      "tiger",       "toad",      "trout",     "turtle",  "viper",
    "vole",    "walrus",     "wasp",        "weasel",    "whale",     "wolf",    "wombat",
    "wren",    "yak",        "zebra",
};
static const char *const food[] = {
    "almond",    "anchovy",    "apple",    "apricot",  "artichoke",  "asparagus", "avocado",
    "bacon",     "bagel",      "banana",   "barley",   "basil",      "bean",      "beetroot",
    "biscuit",   "blackberry", "bread",    "broccoli", "broth",      "bun",       "butter",
    "cabbage",   "cake",       "caramel",  "carrot",   "cashew",     "celery",    "cereal",
    "cheese",    "cherry",     "chestnut", "chili",    "chive",      "chocolate", "cider",
    "cinnamon",  "clove",      "cocoa",    "coconut",  "coffee",     "cookie",    "coriander",
    "cracker",   "cranberry",  "cream",    "cress",    "crumble",    "cucumber",  "cumin",
    "currant",   "curry",      "custard",  "date",     "dill",       "doughnut",  "dumpling",
    "eggplant",  "fennel",     "fig",      "flour",    "garlic",     "ginger",    "grape",
    "gravy",     "guava",      "ham",      "hazelnut", "honey",      "jam",       "jelly",
    "juice",     "kale",       "leek",     "lemon",    "lentil",     "lettuce",   "lime",
    "loaf",      "lychee",     "macaroni", "mango",    "maple",      "marmalade", "melon",
    "milk",      "millet",     "mint",     "muffin",   "mulberry",   "mushroom",  "mustard",
    "nectarine", "noodle",     "nutmeg",   "oat",      "omelette",   "onion",     "orange",
    "oregano",   "pancake",    "papaya",   "paprika",  "parsley",    "parsnip",   "pasta",
    "pastry",    "peach",      "peanut",   "pear",     "pecan",      "pepper",    "pickle",
    "pie",       "pistachio",  "pizza",    "plum",     "popcorn",    "porridge",  "potato",
    "pretzel",   "pudding",    "pumpkin",  "quince",   "radish",     "raisin",    "raspberry",
    "rhubarb",   "rice",       "rosemary", "saffron",  "sage",       "salad",     "salsa",
    "salt",      "sauce",      "sausage",  "scone",    "sesame",     "sherbet",   "soup",
    "soy",       "spinach",    "squash",   "stew",     "strawberry", "sugar",     "sushi",
    "syrup",     "tart",       "tea",      "thyme",    "toast",      "toffee",    "tomato",
    "truffle",   "turnip",     "vanilla",  "vinegar",  "waffle",     "walnut",    "yogurt",
};
static const char *const tools[] = {
    "anvil",     "auger",       "awl",       "axe",        "bellows", "blowtorch", "bolt",
    "brace",     "broom",       "brush",     "bucket",     "caliper", "chain",     "chisel",
    "clamp",     "cleaver",     "compass",   "corkscrew",  "crank",   "crowbar",   "cutter",
    "drill",     "dustpan",     "file",      "flashlight", "fork",    "funnel",    "gauge",
    "gimlet",    "grater",      "grinder",   "hacksaw",    "hammer",  "handsaw",   "hatchet",
    "hinge",     "hoe",         "hook",      "hose",       "jack",    "jigsaw",    "kettle",
    "key",       "knife",       "ladder",    "ladle",      "lathe",   "lever",     "magnet",
    "mallet",    "mop",         "nail",      "needle",     "nut",     "pan",       "peeler",
    "pencil",    "pickaxe",     "pin",       "pitchfork",  "plane",   "pliers",    "plough",
    "plumbline", "poker",       "press",     "protractor", "pulley",  "pump",      "punch",
    "rake",      "ratchet",     "razor",     "rivet",      "roller",  "ruler",     "sandpaper",
    "saucepan",  "scale",       "scalpel",   "scissors",   "scraper", "screw",     "screwdriver",
    "scythe",    "shears",      "shovel",    "sickle",     "sieve",   "sledge",    "socket",
    "spade",     "spanner",     "spatula",   "spike",      "sponge",  "spoon",     "stapler",
    "stencil",   "tape",        "thimble",   "tongs",      "trowel",  "tweezers",  "vice",
    "wedge",     "wheelbarrow", "whetstone", "whisk",      "winch",   "wrench",
};
static const char *const clothing[] = {
    "anorak",   "apron",     "bathrobe",  "belt",        "beret",      "blazer",   "blouse",
    "bonnet",   "boot",      "bowtie",    "bracelet",    "breeches",   "brooch",   "cap",
    "cape",     "cardigan",  "cloak",     "clog",        "coat",       "collar",   "corset",
    "cravat",   "cufflink",  "dress",     "dungarees",   "earring",    "fedora",   "frock",
    "gaiter",   "galosh",    "garter",    "girdle",      "glove",      "gown",     "hat",
    "helmet",   "hood",      "jacket",    "jeans",       "jersey",     "jumper",   "kilt",
    "kimono",   "leggings",  "loafer",    "locket",      "mantle",     "mask",     "mitten",
    "moccasin", "muffler",   "necklace",  "necktie",     "overall",    "overcoat", "parka",
    "pendant",  "petticoat", "pinafore",  "poncho",      "pullover",   "pyjamas",  "raincoat",
    "robe",     "sandal",    "sari",      "sarong",      "sash",       "scarf",    "shawl",
    "shirt",    "shoe",      "shorts",    "skirt",       "slipper",    "smock",    "sneaker",
    "sock",     "stocking",  "suit",      "sunhat",      "suspenders", "sweater",  "tiara",
    "tights",   "toga",      "trousers",  "tunic",       "turban",     "tuxedo",   "uniform",
    "veil",     "vest",      "waistcoat", "windcheater",
};
static const char *const vehicles[] = {
    "aeroplane",  "airship",    "ambulance",  "barge",      "bicycle",   "biplane",
    "boat",       "bobsleigh",  "bulldozer",  "bus",        "canoe",     "caravan",
    "carriage",   "cart",       "catamaran",  "chariot",    "coach",     "convertible",
    "cruiser",    "dinghy",     "ferry",      "forklift",   "freighter", "frigate",
    "galleon",    "glider",     "gondola",    "gyrocopter", "handcart",  "helicopter",
    "hovercraft", "hydrofoil",  "icebreaker", "jeep",       "jet",       "kayak",
    "ketch",      "lifeboat",   "limousine",  "locomotive", "lorry",     "minibus",
    "monoplane",  "moped",      "motorbike",  "motorcycle", "omnibus",   "paraglider",
    "pedalo",     "pickup",     "punt",       "raft",       "railcar",   "rickshaw",
    "rocket",     "rowboat",    "sailboat",   "schooner",   "scooter",   "seaplane",
    "sedan",      "ship",       "skateboard", "skiff",      "sleigh",    "sloop",
    "snowmobile", "spacecraft", "speedboat",  "steamboat",  "submarine", "tandem",
    "tanker",     "taxi",       "toboggan",   "tractor",    "trailer",   "train",
    "tram",       "trawler",    "tricycle",   "trolley",    "truck",     "tugboat",
    "unicycle",   "van",        "wagon",      "yacht",      "zeppelin",
};
static const char *const buildings[] = {
    "abbey",      "airport",     "apartment",  "arcade",      "arena",     "armoury",   "atelier",
    "bakery",     "bank",        "barn",       "barracks",    "basilica",  "belfry",    "brewery",
    "bridge",     "bungalow",    "cabin",      "cafe",        "canteen",   "castle",    "cathedral",
    "chalet",     "chapel",      "church",     "cinema",      "citadel",   "clinic",    "cloister",
    "college",    "cottage",     "courthouse", "creamery",    "dairy",     "depot",     "dockyard",
    "farmhouse",  "fortress",    "foundry",    "gallery",     "garage",    "gatehouse", "granary",
    "greenhouse", "guildhall",   "gymnasium",  "hall",        "hangar",    "harbour",   "hospital",
    "hostel",     "hotel",       "house",      "hut",         "igloo",     "inn",       "kiln",
    "kiosk",      "laboratory",  "library",    "lighthouse",  "lodge",     "manor",     "mansion",
    "market",     "mausoleum",   "mill",       "minaret",     "monastery", "monument",  "museum",
    "nursery",    "observatory", "office",     "orphanage",   "outhouse",  "pagoda",    "palace",
    "pavilion",   "pharmacy",    "pier",       "planetarium", "prison",    "pub",       "pyramid",
    "refinery",   "restaurant",  "school",     "shack",       "shed",      "shop",      "shrine",
    "smithy",     "stable",      "stadium",    "studio",      "synagogue", "tavern",    "temple",
    "terminal",   "theatre",     "tower",      "university",  "vault",     "viaduct",   "villa",
    "warehouse",  "watchtower",  "windmill",   "workshop",
};
static const char *const instruments[] = {
    "accordion",  "bagpipe",  "balalaika",    "banjo",      "bassoon", "bell",
    "bongo",      "bugle",    "carillon",     "castanet",   "celesta", "cello",
    "chime",      "clarinet", "clavichord",   "concertina", "cornet",  "cowbell",
    "cymbal",     "drum",     "dulcimer",     "euphonium",  "fiddle",  "fife",
    "flugelhorn", "flute",    "glockenspiel", "gong",       "guitar",  "harmonica",
    "harmonium",  "harp",     "harpsichord",  "horn",       "kazoo",   "kettledrum",
    "keyboard",   "lute",     "lyre",         "mandolin",   "maraca",  "marimba",
    "oboe",       "ocarina",  "organ",        "panpipe",    "piano",   "piccolo",
    "recorder",   "sackbut",  "saxophone",    "shamisen",   "sitar",   "snare",
    "sousaphone", "spinet",   "tabla",        "tambourine", "theorbo", "timpani",
    "triangle",   "trombone", "trumpet",      "tuba",       "ukulele", "vibraphone",
    "viola",      "violin",   "whistle",      "xylophone",  "zither",
};
static const char *const materials[] = {
    "alabaster", "aluminium", "asphalt",   "bamboo",     "basalt",   "brass",    "brick",
    "burlap",    "canvas",    "cardboard", "cedar",      "cement",   "ceramic",  "chalk",
    "charcoal",  "clay",      "cobalt",    "concrete",   "copper",   "cork",     "cotton",
    "crystal",   "denim",     "diamond",   "ebony",      "enamel",   "felt",     "flannel",
    "flint",     "gabardine", "glass",     "gold",       "granite",  "graphite", "gravel",
    "gypsum",    "iron",      "jade",      "jute",       "lace",     "lacquer",  "lead",
    "leather",   "limestone", "linen",     "mahogany",   "marble",   "mercury",  "mica",
    "mortar",    "muslin",    "nickel",    "nylon",      "obsidian", "onyx",     "paper",
    "parchment", "pebble",    "pewter",    "pine",       "plaster",  "plastic",  "platinum",
    "plywood",   "porcelain", "quartz",    "resin",      "rubber",   "ruby",     "sandstone",
    "sapphire",  "satin",     "shale",     "silk",       "slate",    "steel",    "straw",
    "suede",     "tar",       "teak",      "terracotta", "thatch",   "timber",   "tin",
    "titanium",  "topaz",     "tungsten",  "turquoise",  "tweed",    "vellum",   "velour",
    "wax",       "wicker",    "wool",      "zinc",
};

struct category {
    const char *name;
    const char *const *noun;
    uint32_t n;
};

#define LENGTH(list) (uint32_t)(sizeof(list) / sizeof(list)[0])
#define CATEGORY(name, list)                                                                       \
    {                                                                                              \
        name, list, LENGTH(list)                                                                   \
    }

static const struct category categories[WORDS_N_CATEGORY] = {
    CATEGORY("animal", animals),
    CATEGORY("food", food),
    CATEGORY("tool", tools),
    CATEGORY("clothing", clothing),
    CATEGORY("vehicle", vehicles),
    CATEGORY("building", buildings),
    CATEGORY("instrument", instruments),
    CATEGORY("material", materials),
};

uint32_t words_n_adjective(void)
{
    return LENGTH(adjectives);
}

const char *words_adjective(uint32_t i)
{
    assert(i < LENGTH(adjectives));
    return adjectives[i];
}

uint32_t words_n_verb(void)
{
    return LENGTH(verbs);
}

const char *words_verb(uint32_t i)
{
    assert(i < LENGTH(verbs));
    return verbs[i];
}

const char *words_category(uint32_t category)
{
    assert(category < WORDS_N_CATEGORY);
    return categories[category].name;
}

uint32_t words_n_noun(void)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < WORDS_N_CATEGORY; c++) n += categories[c].n;
    return n;
}

const char *words_noun(uint32_t i, uint32_t *out_category)
{
    uint32_t c = 0;
    for (; c < WORDS_N_CATEGORY && i >= categories[c].n; c++) i -= categories[c].n;
    assert(c < WORDS_N_CATEGORY);
    if (out_category) *out_category = c;
    return categories[c].noun[i];
}
