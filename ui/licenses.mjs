// The licences of what is in the bundles: of all packages of the lockfile that are no tools. Types leave nothing in them.
import { readdirSync, readFileSync } from "node:fs";

const { packages } = JSON.parse(readFileSync("package-lock.json", "utf8"));
for (const [place, { dev, devOptional }] of Object.entries(packages)) {
  const name = place.replace(/^.*node_modules\//, "");
  if (place === "" || dev || devOptional || name.startsWith("@types/")) continue;
  const file = readdirSync(place).find((one) => /^licen[sc]e/i.test(one));
  if (file === undefined) throw new Error(`${name} has no licence file`);
  process.stdout.write(`--- ${name}\n${readFileSync(`${place}/${file}`, "utf8").trimEnd()}\n`);
}
