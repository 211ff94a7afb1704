// How search orders its results: Sphinx's own scores, with design decisions after everything else.
var Scorer = {
  score: ([page, title, anchor, description, score]) => (page.startsWith("decisions/") ? score - 1000 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
