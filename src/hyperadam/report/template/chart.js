// Curves of the page: zoom by dragging, optimizers switched by the legend, steps or seconds, linear and logarithmic axes, values
// under the pointer, the numbers to download.
class Chart {
  constructor(figure) {
    this.figure = figure;
    const panel = data.panels[figure.dataset.panel];
    const { first, size, series } = panel;
    this.titles = { x: panel.x ?? "step", y: panel.y ?? "training loss" };
    this.series = series.map((s) => ({
      ...s, raw: decode(s.mean), low: s.low && decode(s.low), high: s.high && decode(s.high), shown: panel.shown.includes(s.name),
      look: data.looks[s.name], kind: `look-${names.indexOf(s.name)}`,
    }));
    this.xs = panel.xs ?? this.series[0].raw.map((_, k) => first + k * size);
    this.half = panel.x ? 0 : (size - 1) / 2; // a point is a mean over so many steps either way
    this.marks = Boolean(panel.xs); // few points: each is drawn
    this.positive = this.series.every((s) => s.raw.every((v) => !(v <= 0)));
    this.log = { x: Boolean(panel.xs), y: this.positive };
    this.banded = this.series.some((s) => s.low);
    this.bands = false;
    this.timed = this.series.some((s) => s.seconds);
    this.seconds = false;
    this.smooth = this.xs.length >= 40;
    this.view = null; // {x: [a, b], y: [a, b]} when zoomed
    this.at = null; // the place on the x axis that is read
    this.front = null; // the curve that is pointed at
    this.prepare();
    this.build();
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  // what is drawn of each curve: its heights, and its places on the x axis (none if its times are not known)
  prepare() {
    for (const s of this.series) {
      s.mean = this.smooth ? smoothed(s.raw) : s.raw;
      s.xs = this.seconds ? this.xs.map((x) => (s.seconds ? x * s.seconds : NaN)) : this.xs;
    }
  }

  get drawn() { return this.series.filter((s) => s.shown && (!this.seconds || s.seconds)); }

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
    const toggle = (text, field) => button(text, (made) => {
      this[field] = !this[field];
      made.setAttribute("aria-pressed", this[field]);
      if (field === "seconds") { this.view = null; this.at = null; }
      this.prepare();
      this.draw();
    }, this[field]);
    this.reading = element("output", { "aria-live": "polite" });
    this.tools = element("div", { class: "tools", role: "group", "aria-label": "View of the curves" },
      ...(this.timed ? [toggle("seconds", "seconds")] : []), axis("x"), logY,
      ...(this.smooth ? [toggle("smooth", "smooth")] : []), ...(this.banded ? [toggle("band", "bands")] : []),
      button("zoom in", () => this.zoomBy(0.5)), button("zoom out", () => this.zoomBy(2)), button("reset", () => this.reset()),
      button("all on / off", () => this.toggleAll()), button("CSV", () => this.download()), this.reading);
    this.svg = svgElement("svg", { tabindex: 0, role: "img", "aria-label": this.figure.dataset.alt });
    this.legend = element("ul", { class: "legend" });
    for (const s of this.series) {
      const sample = svgElement("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" });
      sample.append(svgElement("path", { class: "line", d: "M1 6H31", "stroke-width": s.look.width, "stroke-dasharray": s.look.dash }));
      const name = element("span", {}, s.look.called);
      if (s.diverged) name.append(element("i", {}, ` ${s.diverged}/${s.runs} diverged`));
      s.value = element("b");
      s.button = button("", () => { s.shown = !s.shown; this.draw(); }, s.shown);
      for (const event of ["pointerenter", "focus"]) s.button.addEventListener(event, () => this.bring(s));
      for (const event of ["pointerleave", "blur"]) s.button.addEventListener(event, () => this.bring(null));
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
      this.read(this.x.back(x));
      this.bring(this.under(x, y));
      if (start) this.brush(start, [x, y]);
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (start) this.zoomTo(start, place(event));
      start = null;
      this.mark.remove();
    });
    this.svg.addEventListener("pointercancel", () => { start = null; this.mark.remove(); });
    this.svg.addEventListener("pointerleave", () => { if (!start) { this.read(null); this.bring(null); } });
    this.svg.addEventListener("dblclick", () => this.reset());
    this.svg.addEventListener("blur", () => this.read(null));
    this.svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      const xs = (this.drawn[0] ?? this.series[0]).xs;
      const last = xs.length - 1;
      const here = this.at === null ? (move > 0 ? -1 : last + 1) : this.nearest(xs, this.at);
      if (move) this.read(xs[Math.min(last, Math.max(0, here + move))], true);
      else if (event.key === "Home") this.read(xs[0], true);
      else if (event.key === "End") this.read(xs[last], true);
      else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
      else if (event.key === "-") this.zoomBy(2);
      else if (event.key === "0" || event.key === "Escape") this.reset();
      else return;
      event.preventDefault();
    });
    this.mark = svgElement("rect", { class: "brush" });
  }

  full() {
    const shown = this.drawn;
    const wide = this.seconds ? shown.map((s) => [0, s.xs[s.xs.length - 1]]) : [[this.xs[0] - this.half, this.xs[this.xs.length - 1] + this.half]];
    const x = [Math.min(...wide.map((r) => r[0])), Math.max(...wide.map((r) => r[1]))];
    if (!shown.length) return { x: this.seconds ? [0, 1] : x, y: [this.positive ? 0.1 : 0, 1] };
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
    const least = this.marks ? view.x[0] : (this.seconds ? view.x[1] / 1000 : 0.5);
    const range = { x: this.log.x ? [Math.max(view.x[0], least), view.x[1]] : view.x, y: view.y };
    if (this.marks && !this.view) range.x = [range.x[0] / 1.15, range.x[1] * 1.15];
    this.x = scale(this.log.x, range.x, [box.left, box.right]);
    this.y = scale(this.log.y, range.y, [box.bottom, box.top]);
    this.range = range;
    const id = `clip-${this.figure.dataset.panel}`;
    const clip = svgElement("clipPath", { id });
    const frame = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
    clip.append(svgElement("rect", frame));
    const grid = svgElement("g", { class: "axes" });
    for (const v of this.marks ? this.xs : ticks(this.log.x, range.x, width / 90)) {
      if (v < range.x[0] || v > range.x[1]) continue;
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
    grid.append(svgElement("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, this.seconds ? "seconds of processor time" : this.titles.x),
      svgElement("text", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, this.titles.y));
    const plot = svgElement("g", { class: "plot", "clip-path": `url(#${id})` });
    for (const s of this.drawn) if (s.low && this.bands) plot.append(svgElement("path", { class: `band ${s.kind}`, d: this.area(s) }));
    // the first optimizers are drawn last, on top
    for (const s of this.drawn.reverse()) this.line(plot, s);
    this.cursor = svgElement("g", { class: "cursors", "clip-path": `url(#${id})` });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = `${height}px`;
    this.svg.replaceChildren(clip, grid, svgElement("rect", { class: "frame", ...frame }), plot, this.cursor);
    for (const s of this.series) {
      s.button.setAttribute("aria-pressed", s.shown);
      s.button.classList.toggle("unknown", this.seconds && !s.seconds);
    }
    this.read(this.at);
    this.bring(this.front);
  }

  line(plot, s) {
    let d = "";
    let last = null;
    s.mean.forEach((v, k) => {
      const ok = Number.isFinite(v) && (!this.log.y || v > 0);
      if (ok) { d += `${last === k - 1 && d ? "L" : "M"}${this.x(s.xs[k]).toFixed(1)} ${this.y(v).toFixed(1)}`; last = k; }
    });
    s.line = svgElement("path", {
      class: `line ${s.kind}`, "data-name": s.name, d, "stroke-width": s.look.width, "stroke-dasharray": s.look.dash,
    });
    plot.append(s.line);
    if (this.marks) {
      s.mean.forEach((v, k) => {
        if (Number.isFinite(v)) plot.append(svgElement("circle", { class: `dot ${s.kind}`, r: 3, cx: this.x(s.xs[k]), cy: this.y(v) }));
      });
    }
    if (s.diverged && last !== null && last < s.mean.length - 1) {
      const [x, y] = [this.x(s.xs[last]), this.y(s.mean[last])];
      plot.append(svgElement("path", { class: `end ${s.kind}`, d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` }));
    }
  }

  area(s) {
    const drawn = this.xs.map((_, k) => k).filter((k) => Number.isFinite(s.high[k]) && Number.isFinite(s.low[k]) && (!this.log.y || s.low[k] > 0));
    if (!drawn.length) return "";
    const limit = (v) => Math.min(1e5, Math.max(-1e5, v)).toFixed(1);
    const points = (values, order) => order.map((k) => `${this.x(s.xs[k]).toFixed(1)} ${limit(this.y(values[k]))}`).join("L");
    return `M${points(s.high, drawn)}L${points(s.low, drawn.reverse())}Z`;
  }

  nearest(xs, x) {
    let best = 0;
    xs.forEach((v, k) => { if (Math.abs(v - x) < Math.abs(xs[best] - x)) best = k; });
    return best;
  }

  // the curve that a point of the drawing is on, or nearly
  under(x, y) {
    let [found, least] = [null, 25];
    for (const s of this.drawn) {
      if (this.x.back(x) > s.xs[s.xs.length - 1] * 1.001) continue; // it has ended by then
      const apart = Math.abs(this.y(s.mean[this.nearest(s.xs, this.x.back(x))]) - y);
      if (apart < least) [found, least] = [s, apart];
    }
    return found;
  }

  // a curve in front of the others, which fade; null: all as they are
  bring(s) {
    this.front = s;
    this.svg.classList.toggle("pointed", Boolean(s?.line?.isConnected));
    for (const other of this.series) other.line?.classList.toggle("front", other === s);
    if (s?.line?.isConnected) s.line.parentNode.append(s.line);
  }

  // values at a place, beside the names of the legend
  read(at, aloud = false) {
    this.at = at;
    this.cursor?.replaceChildren();
    if (at === null) {
      this.reading.replaceChildren();
      for (const s of this.series) s.value.textContent = "";
      return;
    }
    const near = (this.drawn[0] ?? this.series[0]).xs;
    const place = this.seconds ? at : near[this.nearest(near, at)];
    const x = this.x(place);
    this.cursor.append(svgElement("path", { class: "cursor", d: `M${x} ${this.box.top}V${this.box.bottom}` }));
    const spoken = [];
    for (const s of this.series) {
      const value = s.mean[this.nearest(s.xs, place)];
      const past = this.seconds && place > s.xs[s.xs.length - 1] * 1.001; // it has ended by then
      s.value.textContent = this.drawn.includes(s) && !past ? short(value) : "";
      if (!this.drawn.includes(s) || past || !Number.isFinite(value)) continue;
      this.cursor.append(svgElement("circle", { class: `dot ${s.kind}`, r: 3, cx: x, cy: this.y(value) }));
      spoken.push(`${s.look.called} ${short(value)}`);
    }
    const [from, to] = [place - this.half, place + this.half];
    const step = this.marks ? `${this.titles.x} ${place}` : this.seconds ? `${short(place)} s`
      : this.half ? `steps ${grouped(from)}–${grouped(to)}` : `${this.titles.x} ${grouped(place)}`;
    this.reading.replaceChildren(step, ...(aloud ? [element("span", { class: "hidden" }, `: ${spoken.join(", ")}`)] : []));
  }

  // every number of the figure, hidden curves too, as they are and not smoothed
  download() {
    const columns = this.series.flatMap((s) => [
      [s.look.called, s.raw], ...(s.low ? [[`${s.look.called}, low`, s.low], [`${s.look.called}, high`, s.high]] : []),
    ]);
    const timed = this.series.filter((s) => s.seconds).map((s) => [`${s.look.called}, seconds`, this.xs.map((x) => x * s.seconds)]);
    const all = [[this.titles.x, this.xs], ...columns, ...timed];
    const lines = this.xs.map((_, k) => all.map(([, values]) => (Number.isFinite(values[k]) ? Number(values[k].toPrecision(6)) : "")).join(","));
    save(this.figure.dataset.panel, [all.map(([title]) => quoted(title)).join(","), ...lines]);
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
    const about = this.at === null ? (left + right) / 2 : Math.min(right, Math.max(left, this.x(this.at)));
    const full = this.full();
    const limit = (v) => Math.min(full.x[1], Math.max(full.x[0], v));
    const x = [limit(this.x.back(about - (about - left) * factor)), limit(this.x.back(about + (right - about) * factor))];
    if (x[1] - x[0] < 3 * (full.x[1] - full.x[0]) / this.xs.length) return;
    const whole = x[0] <= full.x[0] && x[1] >= full.x[1];
    this.view = whole ? null : { x, y: this.fit(x) };
    this.draw();
  }

  // the heights that are seen between two steps
  fit([a, b]) {
    const seen = this.drawn.flatMap((s) => s.mean.filter((v, k) => Number.isFinite(v) && s.xs[k] >= a && s.xs[k] <= b));
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
