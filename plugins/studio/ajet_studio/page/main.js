/** The start of the page: which view belongs to which address. */

import { startKeys } from "./keys.js";
import { open, route, startRouter } from "./router.js";
import { startSearch } from "./shell.js";
import { startTheme } from "./theme.js";
import { compareView } from "./views/compare.js";
import { episodeView } from "./views/episode.js";
import { groupView } from "./views/group.js";
import { runView } from "./views/run.js";
import { runsView } from "./views/runs.js";
import { searchView } from "./views/search.js";
import { stepView } from "./views/step.js";
import { versusView } from "./views/versus.js";

route("/", runsView);
route("/compare", compareView);
route("/run", runView);
route("/step", stepView);
route("/group", groupView);
route("/episode", episodeView);
route("/versus", versusView);
route("/search", searchView);

startTheme();
startSearch(open);
startKeys();
startRouter();
