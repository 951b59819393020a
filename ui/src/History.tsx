import { useMemo, useState } from "react";
import type { Happening, Run } from "./data";
import { clock, count, counted, moment } from "./words";

const WIDTH = 1000;
const LANE = 16;
const MOST_LANES = 12;
const SHOWN = 30;
/** Width of a mark, and where the line of a lane begins and ends. */
const MARK = 11;
const LANE_BEGIN = 130;
const LANE_END = WIDTH - 20;
/** What a person must see, whatever else happened in the same second. */
const BAD = new Set(["death", "parked", "stopped"]);
const MARKS: Record<string, string> = {
  launch: "▲",
  death: "✕",
  recovery: "●",
  scaling: "⇔",
  parked: "■",
  stopped: "■",
  halted: "◼",
  ended: "◻",
  code: "◆",
  run: "│",
};

/** What has happened, on a line of time for each group and as a list with causes. */
export function History({ run, select }: { run: Run; select: (group: string) => void }) {
  const [all, setAll] = useState(false);
  const { latest, total } = run.history;
  const shown = all ? latest : latest.slice(0, SHOWN);
  return (
    <section aria-label="History">
      <h2>History</h2>
      <Lanes run={run} />
      <ol className="history">
        {shown.map((one, index) => (
          <li key={`${one.at} ${one.kind} ${one.group} ${index}`} className={one.kind}>
            <time dateTime={new Date(one.at * 1000).toISOString()} title={`${moment(one.at)} UTC`}>
              {clock(one.at)}
            </time>
            <span className="kind">
              <span aria-hidden="true">{MARKS[one.kind] ?? "·"}</span> {one.kind}
            </span>
            {one.group !== null && (
              <button type="button" className="link" onClick={() => select(one.group!)}>
                {one.group}
                {one.incarnation === null ? "" : `/${one.incarnation}`}
              </button>
            )}
            <span className="cause">{one.text}</span>
          </li>
        ))}
      </ol>
      {latest.length > SHOWN && (
        <button type="button" className="fold" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? `the latest ${SHOWN}` : `the latest ${count(latest.length)}`}
        </button>
      )}
      {total > latest.length && <p className="small">{count(total - latest.length)} earlier ones are in the log.</p>}
    </section>
  );
}

function Lanes({ run }: { run: Run }) {
  const latest = run.history.latest;
  const groups = useMemo(() => busiest(latest), [latest]);
  const lanes = groups.slice(0, MOST_LANES);
  const rest = groups.length - lanes.length;
  if (lanes.length === 0) return null;
  const begin = latest.length < run.history.total ? Math.min(...latest.map((one) => one.at)) : run.created_at;
  const end = Math.max(run.ended_at ?? run.at, begin + 1, ...latest.map((one) => one.at));
  const at = (time: number) => LANE_BEGIN + ((Math.max(time, begin) - begin) / (end - begin)) * (LANE_END - LANE_BEGIN);
  return (
    <svg className="lanes" viewBox={`0 0 ${WIDTH} ${lanes.length * LANE + 18}`} role="img" aria-label="Line of time; the list below says the same">
      {lanes.map(([group, happenings], index) => (
        <g key={group} transform={`translate(0 ${index * LANE})`}>
          <text x="0" y="12" className="lane-name">
            {group.length > 20 ? `${group.slice(0, 19)}…` : group}
          </text>
          <line x1={LANE_BEGIN} x2={LANE_END} y1="8" y2="8" className="lane" />
          {placed(happenings, at).map(([one, x], number) => (
            <text key={number} x={x} y="12" textAnchor="middle" className={`mark ${one.kind}`}>
              {MARKS[one.kind] ?? "·"}
              <title>{`${clock(one.at)} ${one.kind}: ${one.text}`}</title>
            </text>
          ))}
        </g>
      ))}
      <text x={LANE_BEGIN} y={lanes.length * LANE + 13} className="lane-name">
        {clock(begin)}
      </text>
      <text x={LANE_END} y={lanes.length * LANE + 13} textAnchor="end" className="lane-name">
        {rest > 0 && `${counted(rest, "more group")} in the list below · `}
        {clock(end)} UTC
      </text>
    </svg>
  );
}

/** Marks that would lie on each other stand side by side, in the order of time. Where a lane has no room for all of them,
 * what went wrong is drawn last, and so is on top. */
function placed(happenings: Happening[], at: (time: number) => number): [Happening, number][] {
  const order = [...happenings].reverse().sort((one, other) => one.at - other.at);
  const last = order.length - 1;
  const step = Math.min(MARK, (LANE_END - LANE_BEGIN) / Math.max(last, 1));
  let before = -Infinity;
  const found = order.map((one, index): [Happening, number] => {
    before = Math.min(Math.max(at(one.at), before + step), LANE_END - (last - index) * step);
    return [one, before];
  });
  return found.sort(([one], [other]) => Number(BAD.has(one.kind)) - Number(BAD.has(other.kind)));
}

/** Groups in which most has happened, and what: a line for each of hundreds would say nothing. */
function busiest(latest: Happening[]): [string, Happening[]][] {
  const lanes = Map.groupBy(
    latest.filter((one) => one.group !== null),
    (one) => one.group!,
  );
  return [...lanes].sort((one, other) => other[1].length - one[1].length);
}
