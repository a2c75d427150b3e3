"use strict";
// Around circuitsvis' AttentionHeads: unpacks a view's weights, and feeds it the episode, round, layer and head chosen.
(() => {
  // A React class component without React, which circuitsvis does not export: `updater` is set when it is mounted, and
  // an element is made by copying one. Rendering anew instead would leave every old chart in memory.
  class Live {
    constructor(props) {
      this.props = props;
      this.state = props.holder.state;
    }
    componentDidMount() {
      const { holder } = this.props;
      holder.live = this;
      if (holder.state !== this.state) this.show(holder.state);
    }
    show(state) { this.updater.enqueueSetState(this, state); }
    render() {
      const made = CircuitsVis.Hello({ name: "" });
      return { ...made, key: this.state.key, type: CircuitsVis.AttentionHeads, props: this.state.props };
    }
  }
  Live.prototype.isReactComponent = {};

  // The library and the weights are packed (gzip, base64), and unpacked when a view is first opened.
  const unpacked = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  };
  let library;
  const load = async () => {
    if (window.CircuitsVis) return;
    const script = document.createElement("script");
    script.textContent = await unpacked(document.getElementById("circuitsvis").textContent).text();
    document.head.append(script);
  };

  const unpack = async (view) => {
    const bytes = new DataView(await unpacked(view.weights).arrayBuffer());
    const n = view.labels.length, cells = (n * (n + 1)) / 2;
    const starts = [], heads = view.layers.reduce((sum, layer) => (starts.push(sum), sum + layer.heads.length), 0);
    return (episode, round, layer, head) => {
      const { scale, signed } = view.layers[layer];
      let at = ((episode * view.rounds.length + round) * heads + starts[layer] + head) * cells;
      const weight = (level) => Math.round((level / view.levels - signed) * scale * 1000) / 1000;
      return view.labels.map((_, query) => view.labels.map((_, key) => (key <= query ? weight(bytes.getUint16(2 * at++, true)) : 0)));
    };
  };

  const strongest = (view, names, patterns) => {
    const reads = patterns.flatMap((pattern, head) => pattern.flatMap((row, query) => row.map((weight, key) =>
      ({ weight, text: `${names[head]}: ${view.labels[query]} reads ${view.labels[key]} (${weight.toFixed(2)})`, own: key === query || key === 0 }))));
    const told = reads.filter((read) => !read.own && Math.abs(read.weight) >= 0.01);
    return told.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, 5).map((read) => read.text);
  };

  for (const figure of document.querySelectorAll("figure.attention")) {
    const details = figure.querySelector("details.attention"), holder = {};
    const control = (name) => figure.querySelector(`[data-control="${name}"]`), part = (name) => figure.querySelector(`[data-part="${name}"]`);
    const [episode, round, layer, head] = ["episode", "round", "layer", "head"].map(control);
    let view, weights, waiting, opened;

    const nameHeads = () => {
      const names = view.layers[layer.value].heads;
      head.replaceChildren(...["all", ...names].map((name, i) => new Option(name, i - 1)));
    };
    const draw = () => {
      const { heads, scale, signed } = view.layers[layer.value];
      const chosen = head.value < 0 ? heads.map((_, i) => i) : [+head.value];
      const attention = chosen.map((i) => weights(+episode.value, +round.value, +layer.value, i));
      const names = chosen.map((i) => heads[i]), when = `round ${view.rounds[round.value]}`;
      const props = { tokens: view.labels, attention, attentionHeadNames: names, maxValue: scale, minValue: -scale,
        positiveColor: view.colours[0], negativeColor: view.colours[1] };
      holder.state = { key: `${layer.value}/${head.value}`, props };
      part("round").textContent = view.rounds[round.value];
      round.setAttribute("aria-valuetext", when);
      part("low").textContent = signed ? -+scale.toFixed(3) : 0;
      part("high").textContent = +scale.toFixed(3);
      part("ramp").classList.toggle("signed", signed);
      const told = strongest(view, names, attention).join("; ");
      part("reads").textContent = `Strongest reads of another position, the first left out, in ${when}: ${told || "none"}.`;
      if (holder.live) holder.live.show(holder.state);
      else if (!holder.asked) CircuitsVis.render(part("heads").id, Live, { holder });
      holder.asked = true;
    };
    const soon = () => { waiting ??= requestAnimationFrame(() => { waiting = undefined; draw(); }); };
    const open = () => (opened ??= first());
    const first = async () => {
      view = JSON.parse(details.querySelector("script").textContent);
      weights = await unpack(view);
      await (library ??= load());
      nameHeads();
      const named = () => part("heads").querySelectorAll("canvas:not([aria-label])").forEach((canvas) => canvas.setAttribute("aria-label", "attention pattern"));
      new MutationObserver(named).observe(part("heads"), { childList: true, subtree: true });
      draw();
    };
    for (const element of [episode, round, head]) element.addEventListener("input", () => open().then(soon));
    layer.addEventListener("input", () => open().then(nameHeads).then(soon));
    details.addEventListener("toggle", () => details.open && open());
    details.hidden = false;
    if (details.open) open();
  }
})();
