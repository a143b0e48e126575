/* facts.c: the data of facts.h; everything in it is invented.
 *
 * A test checks that each answer occurs in the paragraph that it belongs to, that the answer of a
 * question over two paragraphs does not occur in the place's paragraph, and that the person's name
 * occurs in both. */
#include "eval/facts.h"

#include <assert.h>
#include <stddef.h>

static const struct fact_pair pairs[] = {
    {
        .place = {"The Harl lighthouse stands on a reef two miles off the coast of Tessaly. "
                  "It was designed by the engineer Ottoline Vess and first lit in the winter "
                  "of 1874. Its lamp burned seal oil until a generator was carried out to the "
                  "rock in 1911.",
                  "In which year was a generator carried out to the Harl lighthouse?", "1911"},
        .person = {"Ottoline Vess grew up in the village of Marrowfield, where her father "
                   "kept a ferry. She taught herself geometry from a book on sundials and "
                   "later trained eleven apprentices, none of whom was allowed to use a slide "
                   "rule.",
                   "How many apprentices did Ottoline Vess train?", "eleven"},
        .question = "In which village did the designer of the Harl lighthouse grow up?",
        .answer = "Marrowfield",
    },
    {
        .place = {"The Quillon Bridge crosses the river Ambrel in nine stone arches. The "
                  "mason Tobias Renwick built it after the flood of 1702 had carried away the "
                  "wooden crossing. Each keystone bears the carving of a different bird.",
                  "How many arches does the Quillon Bridge have?", "nine"},
        .person = {"Tobias Renwick learned his trade in the quarries of Dunmere. He was known "
                   "for a green velvet coat, which he wore at work in all weathers, and he "
                   "died at the age of ninety while repairing a well.",
                   "At what age did Tobias Renwick die?", "ninety"},
        .question = "What colour was the coat of the mason who built the Quillon Bridge?",
        .answer = "green",
    },
    {
        .place = {"The town of Pellworth holds a lantern fair on the last Saturday of "
                  "October. The fair was founded by the glassblower Ida Marchetti, who wanted "
                  "to sell the lamps that a bankrupt hotel had ordered and never paid for.",
                  "In which month does Pellworth hold its lantern fair?", "October"},
        .person = {"Ida Marchetti came to glass late, having spent her youth as an acrobat in "
                   "a travelling circus. Her workshop kept a tame raven named Corvo, which "
                   "was said to warn her when the furnace grew too hot.",
                   "What was the name of the raven in Ida Marchetti's workshop?", "Corvo"},
        .question = "What was the founder of Pellworth's lantern fair in her youth?",
        .answer = "acrobat",
    },
    {
        .place = {"The Senn Observatory was raised on Mount Calder in 1933 at the wish of the "
                  "astronomer Leopold Strand. Its dome turns on ball bearings taken from a "
                  "scrapped tram, and visitors may look through the great telescope on "
                  "Thursdays.",
                  "On which day may visitors look through the great telescope of the Senn "
                  "Observatory?",
                  "Thursdays"},
        .person = {"Leopold Strand discovered the comet that bears his name while looking for "
                   "a lost kite. He could not swim and refused to board any ship, so he took "
                   "part in congresses abroad by letter only. His favourite dish was lentil "
                   "soup.",
                   "What was Leopold Strand looking for when he discovered a comet?", "kite"},
        .question = "What was the favourite dish of the astronomer who wished for the Senn "
                    "Observatory?",
        .answer = "lentil soup",
    },
    {
        .place = {"The island of Vorrey has a single road, which is eleven kilometres long "
                  "and paved with crushed shells. It was laid out by the surveyor Brannoch "
                  "Teel, who is buried where it ends. Cars are allowed on Sundays only.",
                  "With what is the road on the island of Vorrey paved?", "crushed shells"},
        .person = {"Brannoch Teel mapped the northern isles in a rowing boat called the "
                   "Patient Anna. He walked with a limp after a fall from a bell tower and "
                   "never took a wage in coin, asking for salt instead.",
                   "What did Brannoch Teel ask for instead of coin?", "salt"},
        .question = "What was the boat called in which the surveyor of Vorrey's road mapped "
                    "the isles?",
        .answer = "Patient Anna",
    },
    {
        .place = {"The Corbel Library in Astermoor owns forty thousand maps, more than any "
                  "other house in the province. Its collection began with the bequest of the "
                  "merchant Hesper Quayle, who had bought maps of every harbour that owed her "
                  "money.",
                  "How many maps does the Corbel Library own?", "forty thousand"},
        .person = {"Hesper Quayle traded in cinnamon and blue dye. She owned seven ships, all "
                   "named after her aunts, and lost only one of them, which ran aground on "
                   "the bar of Lindrow in a calm sea.",
                   "How many ships did Hesper Quayle own?", "seven"},
        .question = "In which spice did the merchant trade whose bequest began the Corbel "
                    "Library?",
        .answer = "cinnamon",
    },
    {
        .place = {"The Fennick Mill grinds oats with the power of a tide pool that fills "
                  "twice a day. The miller Jorun Aldeby restored it in 1958 with timber from "
                  "a wrecked herring boat. It makes four hundred sacks a season.",
                  "How many sacks does the Fennick Mill make in a season?", "four hundred"},
        .person = {"Jorun Aldeby had been a wireless operator before he turned to milling. He "
                   "kept bees on the roof of the mill, played the bassoon at weddings and "
                   "wrote a column on the weather for the Skerry Gazette.",
                   "For which newspaper did Jorun Aldeby write a column?", "Skerry Gazette"},
        .question = "Which instrument did the man who restored the Fennick Mill play?",
        .answer = "bassoon",
    },
    {
        .place = {"The Orsola Theatre seats six hundred and is heated by a hot spring under "
                  "its stage. It opened in 1889 with a comedy by the playwright Casimir Lunt, "
                  "during which the curtain caught fire without harming anybody.",
                  "By what is the Orsola Theatre heated?", "hot spring"},
        .person = {"Casimir Lunt wrote thirty-one plays, all of them standing up, at a desk "
                   "made from a church organ. He was born in Zelva and was afraid of mirrors, "
                   "so that no portrait of him was ever finished.",
                   "How many plays did Casimir Lunt write?", "thirty-one"},
        .question = "In which place was the author of the Orsola Theatre's opening comedy "
                    "born?",
        .answer = "Zelva",
    },
    {
        .place = {"The botanical garden of Imber shelters a fern that grows nowhere else. The "
                  "botanist Perpetua Holm found it in a railway tunnel in 1921 and named it "
                  "after her sister. The garden is closed in February.",
                  "In which month is the botanical garden of Imber closed?", "February"},
        .person = {"Perpetua Holm lost two fingers to frost on her journey to the Arden "
                   "plateau. She lived on a houseboat with a one-eyed cat and corresponded "
                   "with three hundred gardeners, sending seeds in matchboxes.",
                   "In what did Perpetua Holm send seeds?", "matchboxes"},
        .question = "How many fingers did the finder of Imber's fern lose?",
        .answer = "two",
    },
    {
        .place = {"The clock of Grantholt town hall has only one hand and runs eight minutes "
                  "late by decree. It was made by the clockmaker Edmund Sallow in exchange "
                  "for a pig and a year's supply of candles.",
                  "How many minutes late does the clock of Grantholt run?", "eight"},
        .person = {"Edmund Sallow lived in the lower town of Brisk, next to the tannery. He "
                   "built a mechanical goose that could cross a table, and he taught his nine "
                   "daughters to repair watches before they learned to read.",
                   "What mechanical animal did Edmund Sallow build?", "goose"},
        .question = "How many daughters did the maker of Grantholt's clock have?",
        .answer = "nine",
    },
    {
        .place = {"The Tarn railway climbs from Lower Besk to the salt mines in fourteen "
                  "tunnels. Its chief engineer, Marguerite Osei, chose a gauge so narrow that "
                  "passengers sit with their knees touching. Trains run on wood gas.",
                  "On what do the trains of the Tarn railway run?", "wood gas"},
        .person = {"Marguerite Osei studied bridges in Callowhay and earned her first money "
                   "by tuning pianos. She held a patent for a folding umbrella and once "
                   "stopped a landslide with two hundred bales of wool.",
                   "For what did Marguerite Osei hold a patent?", "folding umbrella"},
        .question = "How did the chief engineer of the Tarn railway earn her first money?",
        .answer = "tuning pianos",
    },
    {
        .place = {"The harbour of Nym freezes for five weeks each year, and the townspeople "
                  "hold a market on the ice. The custom was begun by the harbour master Aurel "
                  "Danforth in the hungry winter of 1816.",
                  "For how many weeks does the harbour of Nym freeze?", "five"},
        .person = {"Aurel Danforth spoke six languages but could not write. He wore a silver "
                   "whistle on a red cord, collected the teeth of sharks, and left his house "
                   "to the society for shipwrecked sailors.",
                   "How many languages did Aurel Danforth speak?", "six"},
        .question = "What did the man collect who began the ice market of Nym?",
        .answer = "teeth of sharks",
    },
    {
        .place = {"The Vantry School of Cooking admits twelve pupils a year, who must first "
                  "peel a sack of onions in silence. It was founded by the cook Philippa Dorn "
                  "in a former fire station in the city of Ruel.",
                  "How many pupils does the Vantry School of Cooking admit a year?", "twelve"},
        .person = {"Philippa Dorn cooked for the polar expedition of the ship Halcyon and "
                   "invented a soup that could be carried as a brick. She disliked pepper, "
                   "and slept in a hammock all her life.",
                   "On which ship's expedition did Philippa Dorn cook?", "Halcyon"},
        .question = "What did the founder of the Vantry School of Cooking dislike?",
        .answer = "pepper",
    },
    {
        .place = {"The Museum of Small Noises in Ottering keeps recordings of doors, kettles "
                  "and distant trains. The collector Wendel Achterberg gave it eight hundred "
                  "wax cylinders in 1947. Entry costs one button.",
                  "What does entry to the Museum of Small Noises cost?", "one button"},
        .person = {"Wendel Achterberg was a piano mover from Sint Maarle who became almost "
                   "deaf in old age. He recorded the same gate for thirty years and claimed "
                   "that it sang a fifth lower in rain.",
                   "For how many years did Wendel Achterberg record the same gate?", "thirty"},
        .question = "What was the profession of the collector who gave the Museum of Small "
                    "Noises its cylinders?",
        .answer = "piano mover",
    },
    {
        .place = {"The vineyard of Castel Umbra grows on the slope of a sleeping volcano and "
                  "yields a wine the colour of tea. The widow Rosaura Melk planted it with "
                  "vines that she had hidden in a coffin.",
                  "What is the colour of the wine of Castel Umbra?", "tea"},
        .person = {"Rosaura Melk fled the war in the south with a mule called Bishop. She "
                   "could foretell hail by the ache in her left elbow, and she won the chess "
                   "championship of the valley four times.",
                   "How many times did Rosaura Melk win the chess championship?", "four"},
        .question = "What was the mule called of the widow who planted the vineyard of Castel "
                    "Umbra?",
        .answer = "Bishop",
    },
    {
        .place = {"The weather station on Cape Lorn has reported every hour since 1901 "
                  "without a gap. Its first keeper, Stig Halloran, tied himself to the mast "
                  "in storms so that he could read the instruments.",
                  "Since which year has the weather station on Cape Lorn reported every hour?",
                  "1901"},
        .person = {"Stig Halloran had trained as a pastry cook in the town of Elderby. He "
                   "carved spoons from driftwood, kept a diary in verse, and was married by "
                   "telegraph to a woman he met once.",
                   "From what did Stig Halloran carve spoons?", "driftwood"},
        .question = "As what had the first keeper of the station on Cape Lorn trained?",
        .answer = "pastry cook",
    },
    {
        .place = {"The paper mill of Undersby makes banknotes for nine countries from old "
                  "fishing nets. The chemist Clementine Farrow found the process by chance "
                  "when she spilled vinegar on her gloves.",
                  "From what does the paper mill of Undersby make banknotes?", "old fishing nets"},
        .person = {"Clementine Farrow was the daughter of a bell founder and could whistle "
                   "two notes at once. She owned the first motorcycle in the district of Hale "
                   "and painted it yellow so that cows would see it.",
                   "What colour did Clementine Farrow paint her motorcycle?", "yellow"},
        .question = "What was the trade of the father of the chemist who found Undersby's "
                    "process?",
        .answer = "bell founder",
    },
    {
        .place = {"The aqueduct of Sarn brings water from the Mirrow springs over a distance "
                  "of sixty kilometres. It was repaired in 1604 by the abbess Theodora of "
                  "Wick, who sold the convent's silver to pay for lead pipes.",
                  "From which springs does the aqueduct of Sarn bring water?", "Mirrow"},
        .person = {"Theodora of Wick entered the convent at sixteen after breaking off an "
                   "engagement to a duke. She bred spotted hens, wrote a treatise on echoes, "
                   "and ruled that nobody should be woken before sunrise.",
                   "On what did Theodora of Wick write a treatise?", "echoes"},
        .question = "What kind of hens did the abbess breed who repaired the aqueduct of "
                    "Sarn?",
        .answer = "spotted",
    },
    {
        .place = {"The racing track of Hobb's Moor is an oval of black sand where ostriches "
                  "are raced at midsummer. The first race was staged by the innkeeper Gideon "
                  "Prowse to settle a debt of forty crowns.",
                  "Which animals are raced on the track of Hobb's Moor?", "ostriches"},
        .person = {"Gideon Prowse ran the Three Herons inn and brewed a beer from heather. He "
                   "had been a ship's drummer, owned a wooden leg for every season, and "
                   "taught his parrot to announce the closing hour.",
                   "From what did Gideon Prowse brew a beer?", "heather"},
        .question = "Which inn did the man run who staged the first race on Hobb's Moor?",
        .answer = "Three Herons",
    },
    {
        .place = {"The Ilmar Archive keeps its files in a disused swimming bath, sorted by "
                  "the weight of the paper. The archivist Susannah Brecht designed the system "
                  "in 1972 after the index had been eaten by mice.",
                  "By what are the files of the Ilmar Archive sorted?", "weight"},
        .person = {"Susannah Brecht walked to work from the suburb of Tollgate every day for "
                   "forty-one years. She restored kites in the evening, and the asteroid 7731 "
                   "carries her name.",
                   "What did Susannah Brecht restore in the evening?", "kites"},
        .question = "From which suburb did the designer of the Ilmar Archive's system walk to "
                    "work?",
        .answer = "Tollgate",
    },
};

#define N_PAIR (sizeof pairs / sizeof pairs[0])

uint32_t facts_n_pair(void)
{
    return (uint32_t)N_PAIR;
}

const struct fact_pair *facts_pair(uint32_t i)
{
    assert(i < N_PAIR);
    return &pairs[i];
}
