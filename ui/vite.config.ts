// Two bundles of one page: plugin.js takes React from Airflow's globals, alone.js has its own (`logio ui`).
import { resolve } from "node:path";
import { defineConfig } from "vite";
import { esmExternalRequirePlugin } from "rolldown/plugins";

const GLOBALS: Record<string, string> = {
  react: "React",
  "react-dom": "ReactDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
};
/** Parts of the graph library that the page does not have: their styles would only be carried along. */
const UNUSED_RULE = /__(minimap|controls|resize-control|node-toolbar|edgeupdater)/;
const UNUSED_VARIABLE = /--xy-(minimap|controls|resize)[^;}]*;/g;
const stylesInUse = {
  name: "styles-in-use",
  enforce: "pre" as const,
  transform(code: string, id: string) {
    if (!id.includes("@xyflow/react/dist/base.css")) return null;
    const used = code
      .replace(/\/\*[^]*?\*\//g, "")
      .replace(/([^{}]+)\{[^{}]*\}/g, (rule, selectors: string) => (selectors.split(",").every((one) => UNUSED_RULE.test(one)) ? "" : rule))
      .replace(UNUSED_VARIABLE, "");
    if (used.length > 0.8 * code.length) throw new Error("the graph library names its styles otherwise: look at UNUSED_RULE");
    return used;
  },
};
/** Alone there is no theme of Airflow's: of each colour only what stands behind the token is carried along. */
const withoutTokens = {
  name: "without-tokens",
  enforce: "pre" as const,
  transform: (code: string, id: string) => (id.includes("src/style.css") ? code.replace(/var\(--chakra-[\w-]+, ((?:[^()]|\([^()]*\))*)\)/g, "$1") : null),
};
/** The graph moves at once: what only animates is left out. */
const ANIMATIONS = ["d3-transition", "d3-interpolate"];
const OUT = process.env.LOGIO_PAGE_OUT ?? "../airflow_logio/ui/built";

export default defineConfig(({ mode }) => {
  const alone = mode === "standalone";
  return {
    define: { "process.env.NODE_ENV": JSON.stringify("production") },
    resolve: { alias: Object.fromEntries(ANIMATIONS.map((name) => [name, resolve("src/instant.ts")])) },
    plugins: alone ? [stylesInUse, withoutTokens] : [stylesInUse, esmExternalRequirePlugin({ external: Object.keys(GLOBALS) })],
    build: {
      outDir: OUT,
      emptyOutDir: false,
      copyPublicDir: false,
      target: "es2022",
      // `light-dark()` as it is: what stands in for it in older browsers is longer.
      cssTarget: ["chrome123", "firefox120", "safari17.5"],
      lib: {
        entry: alone ? "src/alone.tsx" : "src/plugin.tsx",
        name: "AirflowPlugin",
        formats: [alone ? "iife" : "umd"],
        fileName: () => (alone ? "alone.js" : "plugin.js"),
      },
      rollupOptions: {
        // Components of libraries that are not used are left out: a bundler cannot know that these calls do nothing else.
        treeshake: { manualPureFunctions: ["memo", "forwardRef"] },
        output: alone ? {} : { globals: GLOBALS, exports: "default" },
      },
    },
  };
});
