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

/** Warnings above the graph: the others are folded, so that hundreds of them do not push it off the screen. */
const MOST_WARNINGS = 5;

/** What is wrong with the run. It is announced when it changes, not whenever the seconds in it do. */
export function Warnings({ warnings }: { warnings: string[] }) {
  const first = warnings.slice(0, MOST_WARNINGS);
  const others = warnings.slice(MOST_WARNINGS);
  const more = others.length === 0 ? "" : `${others.length} more ${others.length === 1 ? "warning" : "warnings"}`;
  const said = [...first, more].join(" ");
  const announced = useMemo(() => said, [said.replace(/[\d.]+ s\b/g, "")]); // eslint-disable-line
  return (
    <>
      <p role="alert" className="unseen">
        {announced}
      </p>
      {first.map((warning, index) => (
        <p key={index} className="problem">
          {warning}
        </p>
      ))}
      {more && (
        <details>
          <summary>{more}</summary>
          {others.map((warning, index) => (
            <p key={index} className="problem">
              {warning}
            </p>
          ))}
        </details>
      )}
    </>
  );
}
