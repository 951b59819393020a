import { useMemo } from "react";
import type { Refused } from "./data";
import { seconds } from "./words";

/** Why the page has no new figures; those that it shows are older then, and it says how old, outside of what is announced. */
export function Problem({ problem, at }: { problem: Refused | null; at: number }) {
  if (problem === null) return null;
  const age = at > 0 ? ` What is shown is ${seconds((Date.now() - at) / 1000)} old.` : "";
  const hint = problem.status === 401 ? " Log in again, or open the address that was printed." : "";
  return (
    <p className="problem">
      <span role="alert">
        {problem.message}.{hint}
      </span>
      {age}
    </p>
  );
}

/** What is wrong with the run. It is announced once, not whenever the seconds in it change. */
export function Warnings({ warnings }: { warnings: string[] }) {
  const kind = warnings.join(" ").replace(/[\d.]+/g, "");
  const announced = useMemo(() => warnings.join(" "), [kind]); // eslint-disable-line
  return (
    <>
      <p role="alert" className="unseen">
        {announced}
      </p>
      {warnings.map((warning, index) => (
        <p key={index} className="problem">
          {warning}
        </p>
      ))}
    </>
  );
}
