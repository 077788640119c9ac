"use strict";
// Player of an episode: cameras in step, curves, bands. `pairstream.view.player` makes its arguments.

function pairstreamPlayer(id, episode, options) {
  const root = document.getElementById(id);
  if (!root) { requestAnimationFrame(() => pairstreamPlayer(id, episode, options)); return; }
  const AHEAD = 900, BEHIND = 300, AT_ONCE = 12;
  const HUES = ["#3f7fd0", "#d9622b", "#2f9a55", "#9a55d6", "#c2528b", "#1d93ad", "#b3811f", "#7c8a2c"];
  const last = episode.steps - 1;
  const firstFault = episode.faults.length ? Math.min(...episode.faults.map((fault) => fault.steps[0])) : 0;
  let step = Math.min(Math.max(options.step ?? firstFault, 0), Math.max(last, 0));
  let playing = false, speed = 1, began = 0, from = 0, marked = Boolean(options.marked);

  const element = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  // Colours are those of the page, so that the player is light or dark with it.
  const style = `
    .ps { font-size: 13px; line-height: 1.4; color: var(--ink); }
    .ps-top { display: flex; flex-wrap: wrap; gap: 8px 20px; margin-top: 8px; }
    .ps-cameras { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 200px), 1fr)); gap: 8px; flex: 3 1 ${300 * episode.cameras.length}px; }
    .ps-top .facts { flex: 1 1 300px; align-content: start; } .ps > .facts { margin-top: 16px; }
    .ps-camera { margin: 0; } .ps-camera figcaption { color: var(--faint); font-size: 12px; overflow-wrap: anywhere; }
    .ps-camera canvas { display: block; width: 100%; background: var(--lane); border-radius: 4px; }
    .ps-bar { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; margin: 8px 0; }
    .ps-bar button, .ps-bar a, .ps-bar select { font: inherit; padding: 3px 10px; border: 1px solid var(--line); border-radius: 4px;
      background: var(--card); color: var(--ink); text-decoration: none; cursor: pointer; }
    .ps-bar button.on, .ps .ps-alarm { background: light-dark(#b00020, #8f1d2c); color: white; border-color: transparent; }
    .ps-alarm { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 12px; padding: 6px 12px; border-radius: 4px; margin: 6px 0; font-size: 15px; }
    .ps-alarm button { font: inherit; color: white; background: #fff3; border: 0; border-radius: 4px; padding: 2px 8px; cursor: pointer; }
    .ps-bar input { flex: 1 1 120px; accent-color: var(--accent); }
    .ps-where { font-variant-numeric: tabular-nums; white-space: nowrap; }
    .ps-keys { color: var(--faint); font-size: 12px; margin: 2px 0 8px; }
    .ps-row { display: grid; grid-template-columns: max(150px, 14vw) 56px 1fr 90px; align-items: center; font-size: 12px; }
    .ps-row > span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
    .ps-row > :last-child { padding-left: 8px; font-variant-numeric: tabular-nums; }
    .ps-ends { display: flex; flex-direction: column; justify-content: space-between; height: 36px; text-align: right; padding-right: 5px;
      color: var(--faint); font-size: 10px; line-height: 11px; font-variant-numeric: tabular-nums; }
    .ps-strip { position: relative; background: var(--lane); margin: 1px 0; cursor: pointer; overflow: hidden; touch-action: pan-y; }
    .ps-strip::after { content: ""; position: absolute; top: 0; bottom: 0; width: 1px; background: var(--bad); pointer-events: none; left: var(--cursor); }
    .ps-window .ps-strip::before { content: ""; position: absolute; z-index: 1; top: 0; bottom: 0; background: rgba(250, 190, 30, 0.28); pointer-events: none;
      left: var(--window-left); width: var(--window-width); }
    .ps-lane { height: 20px; } .ps-row canvas { display: block; width: 100%; height: 36px; }
    .ps-band { position: absolute; top: 0; bottom: 0; overflow: hidden; white-space: nowrap; font-size: 11px; line-height: 20px;
      text-overflow: ellipsis; padding-left: 4px; box-sizing: border-box; border-left: 1px solid var(--card); }
    .ps-axis { position: sticky; top: 0; z-index: 3; background: var(--paper); } .ps-axis .ps-strip { background: none; height: 18px; }
    .ps-axis i { position: absolute; font-style: normal; color: var(--faint); font-size: 11px; transform: translateX(-50%); white-space: nowrap; }
    .ps-axis i:first-child { transform: none; }
    .ps details > summary { display: list-item; list-style: revert; cursor: pointer; font-weight: 600; margin: 6px 0 2px; }
    .ps-fault { color: var(--bad); font-weight: 600; }
    /* A phone: name and value above their strip, so that neither is cut. */
    @media (max-width: 700px) { .ps-keyboard { display: none; } .ps-cameras { grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
      .ps-bar :is(button, a, select) { padding: 7px 12px; } .ps-bar .ps-where { flex: 1 0 100%; order: -1; }
      .ps-row { grid: "name name value" auto "ends strip strip" auto / 56px 1fr auto; margin-top: 4px; }
      .ps-row > :first-child { grid-area: name; } .ps-row > :nth-child(2) { grid-area: ends; } .ps-row > .ps-strip { grid-area: strip; }
      .ps-axis { grid: "name strip strip" auto / 56px 1fr auto; } }`;
  root.classList.add("ps");
  root.replaceChildren(element("style", {}, style));

  // Frames: fetched ahead of the cursor, kept as images around it.
  const cameras = episode.cameras.map((camera, number) => {
    const [height, width] = camera.size, canvas = element("canvas", {width, height});
    canvas.style.maxWidth = `${55 * width / height}vh`;
    canvas.dataset.camera = camera.name;
    const caption = element("figcaption", {}, "");
    return {...camera, number, canvas, caption, images: new Map(), missing: new Set(camera.missing), shown: -2};
  });
  const label = (camera) => camera.name + (camera.role && camera.role !== camera.name ? ` (${camera.role})` : "")
    + (camera.depth ? ", depth: red near, blue far" : "");
  let loading = 0;

  function source(camera, at) {
    return typeof camera.frames === "string" ? camera.frames.replace("{step}", at) : camera.frames[at];
  }
  function load(camera, at) {
    const where = source(camera, at), held = {image: null, fault: "", done: false};
    camera.images.set(at, held);
    if (where && where.fault) { held.fault = where.fault; held.done = true; return; }
    loading += 1;
    const finish = (fault) => { held.done = true; held.fault = fault; loading -= 1; fill(); if (at === step) draw(); };
    const image = new Image();
    image.onload = () => { held.image = image; finish(""); };
    image.onerror = () => {
      fetch(where).then((answer) => answer.ok ? "the bytes are no picture" : answer.text())
        .then(finish, () => finish("the browser's server does not answer"));
    };
    image.src = where;
  }
  function fill() {
    // The nearest steps first, of all cameras.
    for (let ahead = 0; ahead <= AHEAD && loading < AT_ONCE; ahead += 1) {
      const at = step + ahead;
      if (at > last) break;
      for (const camera of cameras) {
        if (!camera.missing.has(at) && !camera.images.has(at)) load(camera, at);
      }
    }
    for (let behind = 1; behind <= BEHIND && loading < AT_ONCE && step - behind >= 0; behind += 1) {
      for (const camera of cameras) {
        if (!camera.missing.has(step - behind) && !camera.images.has(step - behind)) load(camera, step - behind);
      }
    }
    for (const camera of cameras) {
      if (camera.images.size <= AHEAD + BEHIND) continue;
      for (const at of camera.images.keys()) {
        if (at < step - BEHIND || at > step + AHEAD) camera.images.delete(at);
      }
    }
  }
  const ready = (at) => cameras.every((camera) => camera.missing.has(at) || (camera.images.get(at) || {}).done);

  function paint(camera) {
    const context = camera.canvas.getContext("2d"), {width, height} = camera.canvas;
    const held = camera.images.get(step);
    const state = camera.missing.has(step) ? "missing" : !held || !held.done ? "loading" : held.fault ? "damaged" : "shown";
    camera.canvas.dataset.state = state;
    camera.canvas.dataset.step = step;
    if (state === "loading") return;
    if (state === "shown") {
      context.drawImage(held.image, 0, 0, width, height);
    } else {
      context.fillStyle = state === "damaged" ? "#fbe9eb" : "#8884";
      context.clearRect(0, 0, width, height);
      context.fillRect(0, 0, width, height);
      context.fillStyle = state === "damaged" ? "#b00020" : "#888";
      context.font = `${Math.max(10, Math.round(width / 16))}px system-ui, sans-serif`;
      context.fillText(state === "damaged" ? "damaged frame" : "no frame stored", width / 16, height / 2);
    }
    camera.caption.textContent = label(camera) + (state === "damaged" ? `: ${held.fault}` : "");
    camera.caption.classList.toggle("ps-fault", state === "damaged");
  }

  // Controls.
  const toggle = element("button", {title: "space"}, "▶ play");
  const slider = element("input", {type: "range", min: 0, max: Math.max(last, 0), step: 1, value: step, "aria-label": "step"});
  const where = element("span", {class: "ps-where"});
  const speeds = element("select", {title: "speed", "aria-label": "speed"});
  for (const each of [0.25, 0.5, 1, 2, 4]) speeds.append(element("option", {value: each}, `${each}×`));
  speeds.value = "1";
  const link = element("a", {title: "a link to this step"}, "link");
  const bar = element("div", {class: "ps-bar"}, toggle, speeds, slider, where, link);
  const alarm = element("div", {class: "ps-alarm", role: "alert"});
  for (const fault of episode.faults) {
    const count = fault.steps.length, seek = element("button", {title: "show this step"}, `step ${fault.steps[0]}`);
    seek.addEventListener("click", () => { stop(); go(fault.steps[0]); });
    alarm.append(element("b", {}, `NaN or infinity in ${fault.name}`), `${count} step${count > 1 ? "s" : ""}, from`, seek);
  }
  const mark = element("button", {title: "m"}, "mark");
  if (options.mark) bar.append(mark);
  for (const [key, text] of [["previous", "‹ previous"], ["next", "next ›"]]) {
    if (options[key]) bar.append(element("a", {href: options[key], title: key[0]}, text));
  }
  const rate = `${+episode.rate.toPrecision(4)} steps/s` + (episode.knowsRate ? "" : " (the dataset declares no rate)");
  const keyboard = `space: play · ← →: step (shift: 10) · home, end` + (options.previous !== undefined ? " · p, n: previous, next episode" : "")
    + (options.mark ? " · m: mark" : "") + " · ";
  const hint = [element("span", {class: "ps-keyboard"}, keyboard), rate + (episode.window ? " · yellow: the steps of the sample" : "")];
  const note = element("div", {class: "ps-keys"}, ...hint);
  const rail = element("div", {class: "ps-cameras"}, ...cameras.map((camera) => element("figure", {class: "ps-camera"}, camera.canvas, camera.caption)));

  const facts = element("dl", {class: "facts"}, ...episode.facts.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));

  // Bands and curves share one axis of steps, in percent of their strips.
  const lines = element("div", {class: "ps-lines"});
  const place = (at) => episode.steps ? (at + 0.5) / episode.steps : 0;
  const percent = (share) => `${100 * share}%`;
  if (episode.window) {
    const [start, stop] = episode.window;
    lines.classList.add("ps-window");
    lines.style.setProperty("--window-left", percent(start / episode.steps));
    lines.style.setProperty("--window-width", percent((stop - start) / episode.steps));
  }
  const axis = element("div", {class: "ps-strip"});
  const spacing = [1, 2, 5].flatMap((digit) => [1, 10, 100, 1000, 1e4, 1e5].map((power) => digit * power))
    .sort((one, two) => one - two).find((each) => episode.steps / each <= 10) || episode.steps;
  for (let at = 0; at <= last; at += spacing) {
    const seconds = episode.knowsRate && window.innerWidth > 700 ? ` (${+(at / episode.rate).toPrecision(3)} s)` : "";
    axis.append(element("i", {style: `left:${percent(at ? place(at) : 0)}`}, `${at}${seconds}`));
  }
  lines.append(element("div", {class: "ps-row ps-axis"}, element("span", {}, "step"), element("span"), axis, element("span")));
  const seekOn = (target) => {
    const seek = (event) => {
      const box = target.getBoundingClientRect();
      go(Math.floor((event.clientX - box.left) / box.width * episode.steps));
    };
    target.addEventListener("pointerdown", (event) => { stop(); target.setPointerCapture(event.pointerId); seek(event); });
    target.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
  };
  const follow = [];
  function section(title, open, build) {
    const box = element("details", open ? {open: ""} : {}, element("summary", {}, title));
    let built = false;
    const make = () => { if (box.open && !built) { built = true; build(box); } if (box.open) draw(); };
    box.addEventListener("toggle", make);
    lines.append(box);
    if (open) { built = true; build(box); }
  }
  function addLane(box, lane) {
    const strip = element("div", {class: "ps-strip ps-lane"}), value = element("span"), words = [...new Set(lane.bands.map((band) => band[2]))];
    for (const [start, stop, text] of lane.bands) {
      if (text === "false") continue;
      const hue = text === "true" ? "#d0405588" : HUES[words.indexOf(text) % HUES.length] + "55";
      strip.append(element("div", {class: "ps-band", title: `${text}: steps ${start} to ${stop - 1}`,
        style: `left:${100 * start / episode.steps}%;width:${100 * (stop - start) / episode.steps}%;background:${hue}`}, text));
    }
    seekOn(strip);
    box.append(element("div", {class: "ps-row"}, element("span", {title: lane.name}, lane.name), element("span"), strip, value));
    follow.push(() => {
      if (!box.open) return;
      const now = lane.bands.find(([start, stop]) => start <= step && step < stop);
      value.textContent = value.title = now ? now[2] : "–";
    });
  }
  function addCurve(box, curve, dim, hue) {
    const canvas = element("canvas"), strip = element("div", {class: "ps-strip"}, canvas), value = element("span"), values = curve.values[dim];
    const numbers = values.filter((each) => typeof each === "number");
    const low = Math.min(...numbers), high = Math.max(...numbers), name = curve.dims[dim];
    const isStepped = curve.stepped.includes(dim) || new Set(numbers).size <= 3;
    const paintCurve = () => {
      const ratio = window.devicePixelRatio || 1, width = Math.max(canvas.clientWidth, 10) * ratio, height = 36 * ratio;
      canvas.width = width; canvas.height = height;
      const context = canvas.getContext("2d"), wide = width / episode.steps;
      context.strokeStyle = hue; context.lineWidth = 1.5 * ratio; context.beginPath();
      let pen = false;
      values.forEach((each, at) => {
        const x = place(at) * width;
        if (typeof each !== "number") {
          // NaN and infinity are loud; a step without a value is grey.
          context.fillStyle = each === null ? "#88888844" : "#e0102f";
          context.fillRect(x - 0.5 * wide, 0, Math.max(wide, 3 * ratio), height);
          pen = false;
          return;
        }
        const y = high > low ? height - 4 * ratio - (each - low) / (high - low) * (height - 8 * ratio) : height / 2;
        const left = isStepped ? x - 0.5 * wide : x - (pen ? 0 : 1);
        if (pen) context.lineTo(left, y); else context.moveTo(left, y);
        context.lineTo(isStepped ? x + 0.5 * wide : x, y);
        pen = true;
      });
      context.stroke();
    };
    seekOn(strip);
    const title = numbers.length ? `${curve.name} ${name}: ${low} to ${high}` : `${curve.name} ${name}: no value`;
    const short = (each) => String(+each.toPrecision(3));
    const ends = element("div", {class: "ps-ends"}, ...(!numbers.length ? [] : high > low ? [short(high), short(low)] : [short(high)])
      .map((each) => element("span", {}, each)));
    box.append(element("div", {class: "ps-row"}, element("span", {title}, name), ends, strip, value));
    new ResizeObserver(paintCurve).observe(canvas);
    follow.push(() => {
      if (!box.open) return;
      const now = values[step];
      value.textContent = now === null || now === undefined ? "–" : typeof now === "number" ? +now.toPrecision(4) : now;
      value.classList.toggle("ps-fault", typeof now === "string");
    });
  }
  if (episode.lanes.length) section("texts and flags", true, (box) => episode.lanes.forEach((lane) => addLane(box, lane)));
  for (const curve of episode.curves.filter((each) => each.group !== "column")) {
    const raw = curve.name === curve.group, title = raw ? `${curve.name} (as the dataset has it)` : `${curve.name} (canonical)`;
    const open = raw && curve.dims.length <= 16;
    section(title, open, (box) => curve.dims.forEach((_, dim) => addCurve(box, curve, dim, HUES[dim % HUES.length])));
  }
  const others = episode.curves.filter((each) => each.group === "column");
  for (const curve of others) {
    const more = curve.left ? ` (${curve.dims.length} of ${curve.dims.length + curve.left} dimensions)` : "";
    section(curve.name + more, false, (box) => curve.dims.forEach((_, dim) => addCurve(box, curve, dim, HUES[dim % HUES.length])));
  }

  const top = element("div", {class: "ps-top"}, rail);
  root.append(...(episode.faults.length ? [alarm] : []), top, bar, note, lines);
  // Next to a camera or two, where the table is not much longer than they are high.
  (cameras.length <= 2 && episode.facts.length <= 16 && window.innerWidth > 700 ? top : root).append(facts);

  function draw() {
    for (const camera of cameras) paint(camera);
    slider.value = step;
    where.textContent = `step ${step} of ${episode.steps}` + (episode.knowsRate ? `, ${(step / episode.rate).toFixed(2)} s` : "");
    lines.style.setProperty("--cursor", percent(place(step)));
    for (const each of follow) each();
    toggle.textContent = playing ? "❚❚ pause" : "▶ play";
    mark.textContent = marked ? "marked" : "mark";
    mark.classList.toggle("on", marked);
  }
  function remember() {
    const address = new URL(location.href);
    address.searchParams.set("step", step);
    link.href = address.href;
    if (location.protocol !== "file:") history.replaceState(null, "", address.href);
  }
  let later = 0;
  function go(to) {
    step = Math.min(Math.max(to, 0), Math.max(last, 0));
    fill();
    draw();
    clearTimeout(later);
    later = setTimeout(remember, 150);
  }
  function tick(now) {
    if (!playing) return;
    const due = from + Math.floor((now - began) / 1000 * episode.rate * speed);
    if (due > step) {
      let next = step;
      while (next < Math.min(due, last) && ready(next + 1)) next += 1;
      if (next < Math.min(due, last)) { began = now; from = next; }  // waits for frames
      if (next !== step) { step = next; fill(); draw(); }
      if (step >= last) { stop(); return; }
    }
    requestAnimationFrame(tick);
  }
  function start() {
    if (step >= last) step = 0;
    playing = true; from = step;
    fill(); draw();
    requestAnimationFrame((now) => { began = now; tick(now); });
  }
  function stop() {
    if (playing) { playing = false; remember(); }
    draw();
  }
  function setMark() {
    if (!options.mark) return;
    fetch(options.mark, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({marked: !marked})})
      .then((answer) => answer.ok ? answer.json() : answer.text().then((text) => Promise.reject(text)))
      .then((answer) => { marked = answer.marked; note.replaceChildren(...hint); draw(); })
      .catch((fault) => { note.textContent = `not marked: ${fault}`; });
  }
  toggle.addEventListener("click", () => playing ? stop() : start());
  slider.addEventListener("input", () => { if (playing) { playing = false; } go(Number(slider.value)); });
  speeds.addEventListener("change", () => { speed = Number(speeds.value); from = step; began = performance.now(); });
  mark.addEventListener("click", setMark);
  const keys = {
    " ": () => playing ? stop() : start(),
    ArrowLeft: (event) => { stop(); go(step - (event.shiftKey ? 10 : 1)); },
    ArrowRight: (event) => { stop(); go(step + (event.shiftKey ? 10 : 1)); },
    Home: () => { stop(); go(0); },
    End: () => { stop(); go(last); },
    m: setMark,
    n: () => { if (options.next) location.href = options.next; },
    p: () => { if (options.previous) location.href = options.previous; },
  };
  document.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.altKey || event.metaKey || /^(textarea|select)$/i.test(event.target.tagName)
      || (event.target.tagName === "INPUT" && event.target !== slider)) return;
    event.preventDefault();
    act(event);
  });
  fill();
  draw();
  remember();
}
