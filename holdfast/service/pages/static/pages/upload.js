/* Shows the progress of an upload. Without this script the form is submitted as usual. */
"use strict";

(() => {
  const form = document.getElementById("upload");
  const file = document.getElementById("upload-file");
  const place = document.getElementById("upload-progress");
  const bar = place.querySelector("progress"), words = place.querySelector("p");
  const send = form.querySelector("button.primary"), cancel = document.getElementById("upload-cancel");
  const problem = document.getElementById("upload-problem");
  let asked = null;

  function human(bytes) {
    for (const unit of ["bytes", "kB", "MB", "GB"]) {
      if (bytes < 1000) return unit === "bytes" ? bytes + " bytes" : bytes.toFixed(1) + " " + unit;
      bytes /= 1000;
    }
    return bytes.toFixed(1) + " TB";
  }

  function refuse(what, found, advice) {
    asked = null;
    place.hidden = cancel.hidden = true;
    send.disabled = false;
    problem.querySelector("[data-what]").textContent = what;
    const line = problem.querySelector("[data-found]");
    line.textContent = found || "";
    line.hidden = !found;
    problem.querySelector("[data-advice]").replaceChildren(...(advice || []).map((one) => {
      const item = document.createElement("li");
      item.textContent = one;
      return item;
    }));
    problem.hidden = false;
    problem.scrollIntoView({ block: "nearest" });
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (asked) return;
    problem.hidden = true;
    const chosen = file.files[0];
    if (!chosen) { refuse("no file chosen", "", []); return; }
    if (chosen.size > Number(form.dataset.limit)) {
      refuse("the file is larger than " + form.dataset.limitWords + ", the limit for uploads", human(chosen.size), ["compress it with gzip"]);
      return;
    }
    const began = performance.now();
    asked = new XMLHttpRequest();
    asked.open("POST", form.action);
    asked.setRequestHeader("X-Requested-With", "upload");
    asked.upload.addEventListener("progress", (now) => {
      bar.value = now.loaded / now.total;
      const rate = now.loaded / Math.max(0.2, (performance.now() - began) / 1000);
      const left = Math.ceil((now.total - now.loaded) / rate);
      words.textContent = human(now.loaded) + " of " + human(now.total) + ", " + human(rate) + "/s" + (left > 2 ? ", about " + left + " s left" : "");
    });
    asked.upload.addEventListener("load", () => { words.textContent = "Upload complete; saving the file"; });
    asked.addEventListener("load", () => {
      let said = null;
      try { said = JSON.parse(asked.responseText); } catch { said = null; }
      said = said?.error || said;
      if (asked.status === 200 && said?.url) { location.assign(said.url); return; }
      if (said?.what) { refuse(said.what, said.found, said.try_next); return; }
      if (asked.responseURL.includes("/login")) { refuse("you are logged out", "", ["log in again, then upload the file again"]); return; }
      refuse("the server did not accept the file", "it responded with " + asked.status, ["try again"]);
    });
    asked.addEventListener("error", () => refuse("the connection was lost during the upload", "nothing was saved", ["upload it again when the server responds"]));
    asked.addEventListener("abort", () => refuse("the upload was canceled", "nothing was saved", []));
    send.disabled = true;
    place.hidden = cancel.hidden = false;
    bar.value = 0;
    words.textContent = "Connecting";
    asked.send(new FormData(form));
  });

  cancel.addEventListener("click", () => asked?.abort());
  addEventListener("beforeunload", (event) => { if (asked && asked.readyState < 4) event.preventDefault(); });
  addEventListener("pageshow", () => { asked = null; send.disabled = false; place.hidden = cancel.hidden = true; });
})();
