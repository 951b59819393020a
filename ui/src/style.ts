// The page's own rules and the graph's, as one sheet that a strict Content-Security-Policy allows.
import graph from "@xyflow/react/dist/base.css?inline";
import own from "./style.css?inline";

const sheet = new CSSStyleSheet();
sheet.replaceSync(graph + own);
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
