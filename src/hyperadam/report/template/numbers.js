// Small tools of the page: elements, numbers as they are stored and as they are written, axes, files to save.
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
  for (let k = Math.ceil(a / step - 1e-9); k * step <= b + 1e-9 * step; k++) found.push(k * step || 0); // and not -0
  return found;
};

const short = (v, digits = 3) => {
  if (!Number.isFinite(v)) return "–";
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return v.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(v.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))));
};
const grouped = (v) => (v % 1 === 0 ? v.toLocaleString("en") : String(Number(v.toPrecision(4))));

// the mean of the points about each; what is not finite stays so
const SMOOTH = 0.05;
const smoothed = (values) => {
  const half = Math.floor(SMOOTH * values.length / 2);
  return values.map((v, k) => {
    const reach = Math.min(half, k, values.length - 1 - k);
    const near = values.slice(k - reach, k + reach + 1);
    return near.every(Number.isFinite) ? near.reduce((p, q) => p + q, 0) / near.length : v;
  });
};
const save = (name, lines) => {
  const link = element("a", { download: `${name}.csv`, href: URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const quoted = (text) => {
  const plain = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
};
