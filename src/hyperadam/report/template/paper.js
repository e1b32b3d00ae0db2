"use strict";
// Curves of the page: zoom by dragging, optimizers switched by the legend, linear and logarithmic axes, values under the pointer.
(() => {
  const data = JSON.parse(document.getElementById("curves").textContent);
  const names = Object.keys(data.looks);
  const svgElement = (name, attributes = {}, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };
  const element = (name, attributes = {}, ...content) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...content);
    return made;
  };

  // numbers are sixteen bits each, spread evenly over a range or its logarithm; the last code is "not finite"
  const decode = ([low, high, logarithmic, text]) => {
    const bytes = atob(text);
    const [a, b] = logarithmic ? [Math.log(low), Math.log(high)] : [low, high];
    return Array.from({ length: bytes.length / 2 }, (_, k) => {
      const code = bytes.charCodeAt(2 * k) + 256 * bytes.charCodeAt(2 * k + 1);
      const value = a + (b - a) * code / 65534;
      return code === 65535 ? NaN : logarithmic ? Math.exp(value) : value;
    });
  };

  const scale = (log, [a, b], [p, q]) => {
    const f = log ? Math.log : (v) => v;
    const g = log ? Math.exp : (v) => v;
    const to = (v) => p + (q - p) * (f(v) - f(a)) / (f(b) - f(a));
    to.back = (x) => g(f(a) + (f(b) - f(a)) * (x - p) / (q - p));
    return to;
  };

  const ticks = (log, [a, b], about) => {
    if (log && b / a > 3) {
      const decades = Math.log10(b / a);
      const every = Math.max(1, Math.ceil(decades / about));
      const parts = decades * 3 <= about ? [1, 2, 5] : decades * 2 <= about ? [1, 3] : [1];
      const found = [];
      for (let k = Math.floor(Math.log10(a)); k <= Math.ceil(Math.log10(b)); k++) {
        if (k % every === 0) for (const part of parts) found.push(Number(`${part}e${k}`));
      }
      return found.filter((v) => v >= a * 0.9999 && v <= b * 1.0001);
    }
    const rough = (b - a) / about;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.9999);
    const found = [];
    for (let k = Math.ceil(a / step - 1e-9); k * step <= b + 1e-9 * step; k++) found.push(k * step);
    return found;
  };

  const short = (v, digits = 3) => {
    if (!Number.isFinite(v)) return "–";
    const size = Math.abs(v);
    if (size !== 0 && (size < 1e-3 || size >= 1e5)) return v.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
    return String(Number(v.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))));
  };
  const grouped = (v) => (v % 1 === 0 ? v.toLocaleString("en") : String(Number(v.toPrecision(4))));

  class Chart {
    constructor(figure) {
      this.figure = figure;
      const { first, size, series } = data.panels[figure.dataset.panel];
      this.series = series.map((s) => ({
        ...s, mean: decode(s.mean), low: s.low && decode(s.low), high: s.high && decode(s.high), shown: true,
        look: data.looks[s.name], kind: `look-${names.indexOf(s.name)}`,
      }));
      this.xs = this.series[0].mean.map((_, k) => first + k * size);
      this.half = (size - 1) / 2;
      this.positive = this.series.every((s) => s.mean.every((v) => !(v <= 0)));
      this.log = { x: false, y: this.positive };
      this.bands = this.series.some((s) => s.low);
      this.view = null; // {x: [a, b], y: [a, b]} when zoomed
      this.at = null; // the point that is read
      this.build();
      new ResizeObserver(() => this.draw()).observe(figure);
    }

    build() {
      const button = (text, act, pressed) => {
        const made = element("button", { type: "button", ...(pressed === undefined ? {} : { "aria-pressed": pressed }) }, text);
        made.addEventListener("click", () => act(made));
        return made;
      };
      const axis = (name) => button(`log ${name}`, (made) => {
        this.log[name] = !this.log[name];
        made.setAttribute("aria-pressed", this.log[name]);
        this.draw();
      }, this.log[name]);
      const logY = axis("y");
      logY.disabled = !this.positive;
      const band = button("band", (made) => {
        this.bands = !this.bands;
        made.setAttribute("aria-pressed", this.bands);
        this.draw();
      }, true);
      this.reading = element("output", { "aria-live": "polite" });
      this.tools = element("div", { class: "tools", role: "group", "aria-label": "View of the curves" },
        axis("x"), logY, button("zoom in", () => this.zoomBy(0.5)), button("zoom out", () => this.zoomBy(2)),
        button("reset", () => this.reset()), ...(this.bands ? [band] : []),
        button("all on / off", () => this.toggleAll()), this.reading);
      this.svg = svgElement("svg", { tabindex: 0, role: "img", "aria-label": this.figure.dataset.alt });
      this.legend = element("ul", { class: "legend" });
      for (const s of this.series) {
        const sample = svgElement("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" });
        sample.append(svgElement("path", { class: "line", d: "M1 6H31", "stroke-width": s.look.width, "stroke-dasharray": s.look.dash }));
        const name = element("span", {}, s.name);
        if (s.diverged) name.append(element("i", {}, ` ${s.diverged}/${s.runs} diverged`));
        s.value = element("b");
        s.button = button("", () => { s.shown = !s.shown; this.draw(); }, true);
        s.button.append(sample, name, s.value);
        s.button.className = s.kind;
        this.legend.append(element("li", {}, s.button));
      }
      this.figure.append(this.tools, this.svg, this.legend);
      this.listen();
    }

    listen() {
      const place = (event) => {
        const box = this.svg.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      let start = null;
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        start = place(event);
        this.svg.setPointerCapture(event.pointerId);
      });
      this.svg.addEventListener("pointermove", (event) => {
        const [x, y] = place(event);
        this.read(this.nearest(this.x.back(x)));
        if (start) this.brush(start, [x, y]);
      });
      this.svg.addEventListener("pointerup", (event) => {
        if (start) this.zoomTo(start, place(event));
        start = null;
        this.mark.remove();
      });
      this.svg.addEventListener("pointercancel", () => { start = null; this.mark.remove(); });
      this.svg.addEventListener("pointerleave", () => { if (!start) this.read(null); });
      this.svg.addEventListener("dblclick", () => this.reset());
      this.svg.addEventListener("blur", () => this.read(null));
      this.svg.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
        const last = this.xs.length - 1;
        if (move) this.read(Math.min(last, Math.max(0, (this.at ?? (move > 0 ? -1 : last + 1)) + move)), true);
        else if (event.key === "Home") this.read(0, true);
        else if (event.key === "End") this.read(last, true);
        else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
        else if (event.key === "-") this.zoomBy(2);
        else if (event.key === "0" || event.key === "Escape") this.reset();
        else return;
        event.preventDefault();
      });
      this.mark = svgElement("rect", { class: "brush" });
    }

    full() {
      const x = [this.xs[0] - this.half, this.xs[this.xs.length - 1] + this.half];
      const shown = this.series.filter((s) => s.shown);
      const all = shown.flatMap((s) => s.mean).filter(Number.isFinite);
      if (!all.length) return { x, y: [this.positive ? 0.1 : 0, 1] };
      const start = Math.max(...shown.map((s) => s.mean[0]).filter(Number.isFinite), -Infinity);
      // what explodes leaves the frame, so that the others can still be seen
      const high = all.reduce((a, b) => Math.max(a, b), -Infinity);
      const low = all.reduce((a, b) => Math.min(a, b), Infinity);
      const top = Number.isFinite(start) && start > 0 ? Math.min(high, data.exploded * start) : high;
      return { x, y: this.margin(low, Math.max(low, top), 0.04) };
    }

    // a little room above and below
    margin(low, high, share) {
      if (this.log.y) {
        const factor = high > low ? (high / low) ** share : 2;
        return [low / factor, high * factor];
      }
      const room = high > low ? share * (high - low) : Math.abs(high) / 2 || 1;
      return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
    }

    draw() {
      const width = Math.round(this.svg.getBoundingClientRect().width);
      if (!width) return; // inside details that are closed
      const height = Math.round(Math.min(380, Math.max(240, width * 0.55)));
      const box = { left: 58, right: width - 18, top: 10, bottom: height - 42 };
      this.box = box;
      const view = this.view ?? this.full();
      const range = { x: this.log.x ? [Math.max(view.x[0], 0.5), view.x[1]] : view.x, y: view.y };
      this.x = scale(this.log.x, range.x, [box.left, box.right]);
      this.y = scale(this.log.y, range.y, [box.bottom, box.top]);
      this.range = range;
      const id = `clip-${this.figure.dataset.panel}`;
      const clip = svgElement("clipPath", { id });
      const frame = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
      clip.append(svgElement("rect", frame));
      const grid = svgElement("g", { class: "axes" });
      for (const v of ticks(this.log.x, range.x, width / 90)) {
        const x = this.x(v).toFixed(1);
        grid.append(svgElement("path", { class: "grid", d: `M${x} ${box.top}V${box.bottom}` }));
        grid.append(svgElement("text", { x, y: box.bottom + 16, "text-anchor": "middle" }, grouped(v)));
      }
      for (const v of ticks(this.log.y, range.y, height / 45)) {
        const y = this.y(v).toFixed(1);
        grid.append(svgElement("path", { class: "grid", d: `M${box.left} ${y}H${box.right}` }));
        grid.append(svgElement("text", { x: box.left - 6, y: Number(y) + 4, "text-anchor": "end" }, short(v)));
      }
      const middle = (box.top + box.bottom) / 2;
      grid.append(svgElement("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, "step"),
        svgElement("text", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, "training loss"));
      const plot = svgElement("g", { class: "plot", "clip-path": `url(#${id})` });
      for (const s of this.series) if (s.shown && s.low && this.bands) plot.append(svgElement("path", { class: `band ${s.kind}`, d: this.area(s) }));
      // the first optimizers are drawn last, on top
      for (const s of [...this.series].reverse()) if (s.shown) this.line(plot, s);
      this.cursor = svgElement("g", { class: "cursors", "clip-path": `url(#${id})` });
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.style.height = `${height}px`;
      this.svg.replaceChildren(clip, grid, svgElement("rect", { class: "frame", ...frame }), plot, this.cursor);
      for (const s of this.series) s.button.setAttribute("aria-pressed", s.shown);
      this.read(this.at);
    }

    line(plot, s) {
      let d = "";
      let last = null;
      s.mean.forEach((v, k) => {
        const ok = Number.isFinite(v) && (!this.log.y || v > 0);
        if (ok) { d += `${last === k - 1 && d ? "L" : "M"}${this.x(this.xs[k]).toFixed(1)} ${this.y(v).toFixed(1)}`; last = k; }
      });
      plot.append(svgElement("path", {
        class: `line ${s.kind}`, "data-name": s.name, d, "stroke-width": s.look.width, "stroke-dasharray": s.look.dash,
      }));
      if (s.diverged && last !== null && last < s.mean.length - 1) {
        const [x, y] = [this.x(this.xs[last]), this.y(s.mean[last])];
        plot.append(svgElement("path", { class: `end ${s.kind}`, d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` }));
      }
    }

    area(s) {
      const drawn = this.xs.map((_, k) => k).filter((k) => Number.isFinite(s.high[k]) && Number.isFinite(s.low[k]) && (!this.log.y || s.low[k] > 0));
      if (!drawn.length) return "";
      const limit = (v) => Math.min(1e5, Math.max(-1e5, v)).toFixed(1);
      const points = (values, order) => order.map((k) => `${this.x(this.xs[k]).toFixed(1)} ${limit(this.y(values[k]))}`).join("L");
      return `M${points(s.high, drawn)}L${points(s.low, drawn.reverse())}Z`;
    }

    nearest(step) {
      const [a, b] = [this.xs[0], this.xs[this.xs.length - 1]];
      const share = b > a ? (step - a) / (b - a) : 0;
      return Math.min(this.xs.length - 1, Math.max(0, Math.round(share * (this.xs.length - 1))));
    }

    // values at a point, beside the names of the legend
    read(at, aloud = false) {
      this.at = at;
      this.cursor?.replaceChildren();
      if (at === null) {
        this.reading.replaceChildren();
        for (const s of this.series) s.value.textContent = "";
        return;
      }
      const x = this.x(this.xs[at]);
      this.cursor.append(svgElement("path", { class: "cursor", d: `M${x} ${this.box.top}V${this.box.bottom}` }));
      const spoken = [];
      for (const s of this.series) {
        s.value.textContent = s.shown ? short(s.mean[at]) : "";
        if (!s.shown || !Number.isFinite(s.mean[at])) continue;
        this.cursor.append(svgElement("circle", { class: `dot ${s.kind}`, r: 3, cx: x, cy: this.y(s.mean[at]) }));
        spoken.push(`${s.name} ${short(s.mean[at])}`);
      }
      const [from, to] = [this.xs[at] - this.half, this.xs[at] + this.half];
      const step = this.half ? `steps ${grouped(from)}–${grouped(to)}` : `step ${grouped(this.xs[at])}`;
      this.reading.replaceChildren(step, ...(aloud ? [element("span", { class: "hidden" }, `: ${spoken.join(", ")}`)] : []));
    }

    inside([x, y]) {
      const { left, right, top, bottom } = this.box;
      return [Math.min(right, Math.max(left, x)), Math.min(bottom, Math.max(top, y))];
    }

    brush(from, to) {
      const [[a, b], [c, d]] = [this.inside(from), this.inside(to)];
      const place = { x: Math.min(a, c), y: Math.min(b, d), width: Math.abs(a - c), height: Math.abs(b - d) };
      for (const [key, value] of Object.entries(place)) this.mark.setAttribute(key, value);
      this.svg.append(this.mark);
    }

    zoomTo(from, to) {
      const [[a, b], [c, d]] = [this.inside(from), this.inside(to)];
      if (Math.abs(a - c) < 8 || Math.abs(b - d) < 8) return; // a click, or a slip
      this.view = {
        x: [this.x.back(Math.min(a, c)), this.x.back(Math.max(a, c))],
        y: [this.y.back(Math.max(b, d)), this.y.back(Math.min(b, d))],
      };
      this.draw();
    }

    // about the step that is read, else about the middle
    zoomBy(factor) {
      const { left, right } = this.box;
      const about = this.at === null ? (left + right) / 2 : Math.min(right, Math.max(left, this.x(this.xs[this.at])));
      const full = this.full();
      const limit = (v) => Math.min(full.x[1], Math.max(full.x[0], v));
      const x = [limit(this.x.back(about - (about - left) * factor)), limit(this.x.back(about + (right - about) * factor))];
      if (x[1] - x[0] < 3 * (this.xs[1] - this.xs[0])) return;
      const whole = x[0] <= full.x[0] && x[1] >= full.x[1];
      this.view = whole ? null : { x, y: this.fit(x) };
      this.draw();
    }

    // the heights that are seen between two steps
    fit([a, b]) {
      const seen = this.series.filter((s) => s.shown).flatMap((s) => s.mean.filter((v, k) => Number.isFinite(v) && this.xs[k] >= a && this.xs[k] <= b));
      const full = this.full().y;
      if (!seen.length) return full;
      const low = seen.reduce((p, q) => Math.min(p, q), Infinity);
      // as in the full view, what explodes leaves the frame
      const high = Math.min(full[1], seen.reduce((p, q) => Math.max(p, q), -Infinity));
      if (!(high > low)) return full;
      return this.margin(low, high, 0.05);
    }

    reset() { this.view = null; this.draw(); }

    toggleAll() {
      const on = !this.series.every((s) => s.shown);
      for (const s of this.series) s.shown = on;
      this.draw();
    }
  }

  // a curve is built when it first comes near the screen
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) start(target);
  }, { rootMargin: "600px" });
  const start = (figure) => {
    seen.unobserve(figure);
    if (!figure.querySelector("svg")) new Chart(figure);
  };
  const charts = document.querySelectorAll("figure.chart");
  charts.forEach((figure) => seen.observe(figure));
  window.addEventListener("beforeprint", () => charts.forEach((figure) => { if (figure.offsetParent) start(figure); }));
})();
