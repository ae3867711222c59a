// Browsers give pages from the disk (file:) no web workers, which the search runs in. This class
// does the same in a hidden frame: it loads the worker's script there and passes messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve) => { this.frame.onload = resolve; });
      this.frame.srcdoc = `<script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() =>
          new Promise((loaded) => {
            const script = document.createElement("script");
            script.src = url;
            script.onload = script.onerror = loaded;
            document.head.append(script);
          })), Promise.resolve());
      <\/script><script src="${url}"><\/script>`;
      addEventListener("message", (event) => {
        if (event.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      document.body.append(this.frame);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(
        new MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
}
