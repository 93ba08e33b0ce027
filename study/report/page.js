"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const drawn = new Set();

  function themed(layout, printing) {
    const css = getComputedStyle(root);
    const pick = (name, paper) => (printing ? paper : css.getPropertyValue(name).trim());
    const ink = pick("--ink", "#000"), grid = pick("--grid", "#ddd"), soft = pick("--soft", "#444");
    const axis = (a) => Object.assign({}, a, {
      gridcolor: grid, zerolinecolor: grid, linecolor: grid,
      tickfont: { color: soft, size: 11 },
      title: Object.assign({ standoff: 8 }, a && a.title, { font: { color: soft, size: 12 } }),
    });
    return Object.assign({}, layout, {
      autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: getComputedStyle(document.body).fontFamily },
      margin: { l: 54, r: 12, t: 8, b: 42 },
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      hoverlabel: { bgcolor: pick("--card", "#fff"), bordercolor: grid, font: { color: ink, size: 12 } },
    });
  }

  // `beforeprint` is dispatched while the page still has its screen layout, so widths on paper are
  // fixed: they fit one and two columns of A4 or Letter within the browser's margins.
  function onPaper(element, layout) {
    const width = element.closest(".panels.wide") ? 620 : 296;
    return Object.assign(layout, { autosize: false, width });
  }

  function draw(id, printing) {
    const element = document.getElementById(id), figure = figures[id];
    if (!element || !figure) return Promise.resolve();
    drawn.add(id);
    const layout = themed(figure.layout, printing);
    return Plotly.react(element, figure.data, printing ? onPaper(element, layout) : layout, {
      responsive: true, displaylogo: false, displayModeBar: false,
    }).then(() => element.setAttribute("data-drawn", "yes"));
  }

  function drawAll(printing) {
    return Promise.all(Object.keys(figures).map((id) => draw(id, printing)));
  }

  // Plots are drawn when they come near the viewport, so that a long report opens at once.
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target.id)) draw(entry.target.id, false);
    }
  }, { rootMargin: "600px" });
  for (const id of Object.keys(figures)) observer.observe(document.getElementById(id));

  const redraw = () => drawn.forEach((id) => draw(id, false));
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => drawAll(true));
  addEventListener("afterprint", redraw);
  window.drawAll = drawAll;
})();
