// Regions that scroll sideways are reachable by keyboard: wide tables, long lines of code, equations, and figures.
const REGIONS = '.md-typeset__scrollwrap, .md-typeset pre > code, .equation, .figure, .md-typeset__table';

function mark() {
  for (const region of document.querySelectorAll(REGIONS)) {
    if (region.scrollWidth > region.clientWidth + 1) region.tabIndex = 0;
    else region.removeAttribute('tabindex');
  }
}

// The theme wraps tables after this script has run.
addEventListener('load', () => requestAnimationFrame(mark));
addEventListener('resize', mark);
for (const fold of document.querySelectorAll('details')) fold.addEventListener('toggle', mark);
