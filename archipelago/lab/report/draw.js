"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (n) => () => css("--c" + (n % 8));
  const prefixes = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const short = (v) => {
    if (v == null) return "";
    for (const [size, name] of prefixes) {
      if (Math.abs(v) >= size) return +(v / size).toPrecision(4) + name;
    }
    return String(+v.toPrecision(4));
  };
  const marked = (u, marks) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.setLineDash([4, 4]);
    for (const each of marks) {
      const x = Math.round(u.valToPos(each.x, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = css("--c" + (each.colour % 8));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };
  const drawn = [];
  for (const box of document.querySelectorAll("[data-chart]")) {
    const chart = charts[Number(box.dataset.chart)];
    const data = uPlot.join(chart.series.map((each) => [each.x, each.y]));
    const axis = {
      stroke: () => css("--dim"),
      grid: { stroke: () => css("--line"), width: 1 },
      ticks: { stroke: () => css("--line"), width: 1 },
      values: (_, values) => values.map(short),
    };
    const plot = new uPlot({
      width: Math.max(280, box.clientWidth),
      height: 260,
      scales: { x: { time: false } },
      cursor: { sync: { key: chart.x_label } },
      series: [
        { label: chart.x_label, value: (_, v) => short(v) },
        ...chart.series.map((each) => ({
          label: each.label,
          stroke: colour(each.colour),
          width: each.reference ? 1 : 2,
          dash: each.reference ? [6, 4] : [],
          points: { show: each.x.length < 30 },
          value: (_, v) => short(v),
        })),
      ],
      hooks: { draw: [(u) => marked(u, chart.marks)] },
      axes: [{ ...axis }, { ...axis, size: 60 }],
    }, data, box);
    drawn.push([box, plot]);
  }
  new ResizeObserver(() => {
    for (const [box, plot] of drawn) {
      const width = Math.max(280, box.clientWidth);
      if (width !== plot.width) plot.setSize({ width, height: 260 });
    }
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [, plot] of drawn) plot.redraw();
  });
  document.documentElement.dataset.drawn = String(drawn.length);
})();
