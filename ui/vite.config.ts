// Two bundles of one page: plugin.js takes React from Airflow's globals, alone.js has its own (`logio ui`).
import { defineConfig } from "vite";
import { esmExternalRequirePlugin } from "rolldown/plugins";

const GLOBALS: Record<string, string> = {
  react: "React",
  "react-dom": "ReactDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
};
/** Parts of the graph library that the page does not have: their styles would only be carried along. */
const UNUSED = /__(minimap|controls|resize-control|node-toolbar|edgeupdater)/;
const stylesInUse = {
  name: "styles-in-use",
  enforce: "pre" as const,
  transform: (code: string, id: string) =>
    id.includes("@xyflow/react/dist/base.css") ? code.replace(/[^{}]+\{[^{}]*\}/g, (rule) => (UNUSED.test(rule.split("{")[0]) ? "" : rule)) : null,
};
const OUT = process.env.LOGIO_PAGE_OUT ?? "../airflow_logio/ui/built";

export default defineConfig(({ mode }) => {
  const alone = mode === "standalone";
  return {
    define: { "process.env.NODE_ENV": JSON.stringify("production") },
    plugins: alone ? [stylesInUse] : [stylesInUse, esmExternalRequirePlugin({ external: Object.keys(GLOBALS) })],
    build: {
      outDir: OUT,
      emptyOutDir: false,
      copyPublicDir: false,
      target: "es2022",
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
