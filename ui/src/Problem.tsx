import type { Refused } from "./data";
import { seconds } from "./words";

/** Why the page has no new figures; those that it shows are older then, and it says how old. */
export function Problem({ problem, at }: { problem: Refused | null; at: number }) {
  if (problem === null) return null;
  const age = at > 0 ? ` What is shown is ${seconds((Date.now() - at) / 1000)} old.` : "";
  const hint = problem.status === 401 ? " Log in again, or open the address that was printed." : "";
  return (
    <p className="problem" role="alert">
      {problem.message}.{hint}
      {age}
    </p>
  );
}
