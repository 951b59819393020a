import { type FormEvent, useEffect, useRef, useState } from "react";
import { type By, KINDS, Mistyped, type Wanted, wanted } from "./criteria";
import { type Found, type FoundByValues, type LineagePorts, Refused, type SearchedSoFar, type Server, type WhyNot } from "./data";
import { EventLink } from "./EventLink";
import { usePolled } from "./poll";
import { Missing, extent, notWhole } from "./Missing";
import type { Named } from "./place";
import { Problem } from "./Problem";
import { count, counted, part, seconds } from "./words";

interface Props {
  server: Server;
  api: string;
  /** Whether the person may look for values. */
  data: boolean;
  open: (named: Named) => void;
}

/** After so many steps of the server, or so many further events, a search waits for its reader: a server that is busy gets no fewer. */
const MOST_STEPS = 25;
/** Ports and their events are asked for again: an operator may have sent its first event meanwhile. */
const PORTS_SECONDS = 10;
const MOST_FOUND = 100;

/** What was asked, and what all its answers so far say together. */
interface Result {
  asked: { port: string } & Wanted;
  found: Found;
}

/** What was asked for because it is missing, and the answer, which grows until it is whole. */
interface Sought {
  asked: Result["asked"];
  answer: WhyNot | null;
  at: SearchedSoFar | null;
  whole: boolean;
  /** It broke off, and no user has stopped it. */
  failed: boolean;
}

interface Failure {
  message: string;
  again: (() => void) | null;
}

/** Chooses a port, and finds an event of it. Whatever fails, the form stays, and can be asked again. */
export function Finder({ server, api, data, open }: Props) {
  const sending = usePolled<LineagePorts>(server, api, PORTS_SECONDS);
  const ports = sending.value;
  const [port, setPort] = useState("");
  const [by, setBy] = useState<By>("event");
  const [text, setText] = useState("");
  const [result, setResult] = useState<Result | null>(null);
  const [missing, setMissing] = useState<Sought | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  const asking = useRef<AbortController | null>(null);
  const stopping = useRef<HTMLButtonElement>(null);
  const reading = useRef<HTMLElement>(null);

  /** One question at a time: a new one ends that before it. */
  const ask = async (work: (signal: AbortSignal) => Promise<void>) => {
    asking.current?.abort();
    const mine = (asking.current = new AbortController());
    setFailure(null);
    setBusy(true);
    try {
      await work(mine.signal);
    } catch (error) {
      if (!mine.signal.aborted) setFailure({ message: messageOf(error), again: () => void ask(work) });
    }
    if (!mine.signal.aborted) setBusy(false);
  };
  useEffect(() => () => asking.current?.abort(), [server, api]);

  /** A search by values comes in steps of a moment each; what a failed one has found so far stays. */
  const look = (asked: Result["asked"], before: FoundByValues | null) => {
    let sofar = before;
    return ask(async (signal) => {
      let steps = 0;
      const most = (sofar?.events.length ?? 0) + MOST_FOUND;
      do {
        const body = "where" in asked ? { ...asked, before: sofar?.before, most: most - (sofar?.events.length ?? 0) } : asked;
        const step = await server.post<Found>(`${api}/find`, body, signal);
        if (signal.aborted) return;
        const found = sofar === null || !("searched" in step) ? step : together(sofar, step);
        sofar = "searched" in found ? found : null;
        setResult({ asked, found });
      } while (sofar !== null && sofar.before !== null && sofar.events.length < most && ++steps < MOST_STEPS);
    });
  };
  const askWhy = (asked: Result["asked"]) =>
    ask(async (signal) => {
      let sofar: Sought = { asked, answer: null, at: null, whole: false, failed: false };
      const show = (more: Partial<Sought>) => {
        sofar = { ...sofar, ...more };
        if (!signal.aborted) setMissing(sofar);
      };
      show({});
      const told = (name: string, data: unknown) =>
        show(name === "so_far" ? { answer: data as WhyNot } : { at: data as SearchedSoFar | null });
      const answer = await server.follow<WhyNot>(`${api}/why_not`, asked, signal, told).catch((error: unknown) => {
        show({ failed: true });
        throw error;
      });
      // The button to stop it goes, and hands on the focus.
      if (stopping.current !== null && document.activeElement === stopping.current) reading.current?.focus();
      show({ answer, whole: true });
    });
  const stop = () => {
    asking.current?.abort();
    setBusy(false);
  };
  const submit = (event: FormEvent, isMissing = false) => {
    event.preventDefault();
    try {
      const asked = { port: port || ports!.ports[0]!.port, ...wanted(by, text) };
      setResult(null);
      setMissing(null);
      void (isMissing ? askWhy(asked) : look(asked, null));
    } catch (error) {
      if (!(error instanceof Mistyped)) throw error;
      stop(); // what is found from now on would stand below this
      setFailure({ message: error.message, again: null });
    }
  };

  const values = result !== null && "searched" in result.found ? result.found : null;
  const further =
    values !== null && (busy || values.before !== null)
      ? { name: "Search further", go: () => look(result!.asked, values) }
      : missing !== null && !missing.whole && !missing.failed
        ? { name: "Search again", go: () => askWhy(missing.asked) }
        : null;
  if (ports?.ports.length === 0) return <p className="small">The pipeline declares no lineage scope.</p>;
  return (
    <>
      {ports !== null && (
        <form className="actions" onSubmit={submit}>
          <label>
            Port{" "}
            <select value={port} onChange={(event) => setPort(event.target.value)}>
              {ports.ports.map((one) => (
                <option key={one.port} value={one.port}>
                  {one.port} ({counted(one.sent, "event")})
                </option>
              ))}
            </select>
          </label>
          {ports.in_all > ports.ports.length && <span className="small">{part(ports.ports.length, ports.in_all, "port")}</span>}
          <label>
            by{" "}
            <select
              value={by}
              onChange={(event) => {
                setBy(event.target.value as By);
                setText("");
              }}
            >
              {(Object.keys(KINDS) as By[])
                .filter((one) => data || (one !== "where" && one !== "input_set"))
                .map((one) => (
                  <option key={one} value={one}>
                    {KINDS[one].label}
                  </option>
                ))}
            </select>
          </label>
          <input
            type={KINDS[by].input}
            step={1}
            min={by === "event" ? 1 : undefined}
            required
            aria-label="What to look for"
            placeholder={KINDS[by].hint}
            size={by === "where" ? 40 : undefined}
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
          <button type="submit" className="choice">
            Find
          </button>
          {by === "where" && (
            <button type="button" className="choice" onClick={(event) => submit(event, true)}>
              Why is it not there?
            </button>
          )}
        </form>
      )}
      {ports === null && <Problem problem={sending.problem} at={0} />}
      {failure !== null && (
        <p role="alert" className="problem">
          {failure.message}{" "}
          {failure.again !== null && (
            <button type="button" className="link" onClick={failure.again}>
              Try again
            </button>
          )}
        </p>
      )}
      <p className="small">
        <span role="status">
          {ports === null && sending.problem === null && "Looking at the log ..."}
          {busy
            ? missing?.at
              ? `Searching ${missing.at.port}:`
              : "Searching ..."
            : result !== null
              ? said(result.found)
              : missing !== null && (missing.whole ? `Answered in ${seconds(missing.answer!.seconds)}:` : notWhole(missing.at, missing.failed))}
        </span>{" "}
        {/* Not part of the status, which would be read out at each step. */}
        {busy && (values !== null ? said(values) : missing?.at && extent(missing.at))}{" "}
        {further !== null && (
          <button ref={stopping} type="button" className="choice" onClick={busy ? stop : () => void further.go()}>
            {busy ? "Stop" : further.name}
          </button>
        )}
      </p>
      {result !== null && (
        <div className="actions found" role="group" aria-label="Found events">
          {result.found.events.map((one) => (
            <EventLink key={`${one.port} ${one.event}`} event={one} open={open} />
          ))}
        </div>
      )}
      {missing !== null && <Missing answer={missing.answer} busy={busy} place={reading} open={open} />}
    </>
  );
}

function messageOf(error: unknown): string {
  const message = error instanceof Refused ? error.message : String(error);
  return /[.!?]$/.test(message) ? message : `${message}.`;
}

/** A search and the one that has continued it. */
function together(first: FoundByValues, next: FoundByValues): FoundByValues {
  return {
    ...next,
    // Later events have larger numbers, and are not searched.
    sent: first.sent,
    newer: next.sent - first.sent,
    events: [...first.events, ...next.events],
    searched: first.searched + next.searched,
    seconds: first.seconds + next.seconds,
    partly: first.partly + next.partly,
    damaged: first.damaged + next.damaged,
    damaged_first: first.damaged_first || next.damaged_first,
    lacking: first.lacking && next.lacking,
  };
}

function said(found: Found): string {
  const many = `${count(found.events.length)} found`;
  if (!("searched" in found)) {
    const slow = found.ports_looked_at < found.ports ? `; the log is slow, searched was ${part(found.ports_looked_at, found.ports, "slot")}` : "";
    return `${many}${found.more ? ": the first of more" : ""}${slow}`;
  }
  const { searched, sent } = found;
  const extent =
    found.before !== null
      ? `the newest ${part(searched, sent, "event")} of the port`
      : searched === sent
        ? `all ${counted(sent, "event")} of the port`
        : `all ${counted(searched, "event")} that are kept, of ${count(sent)} that the port has sent`;
  const partly = found.partly > 0 ? `; of ${counted(found.partly, "large event")} only the first records` : "";
  const lacking = found.lacking === "" ? "" : `; ${found.lacking}`;
  const newer = (found.newer ?? 0) > 0 ? `; ${count(found.newer!)} more were sent since it began` : "";
  const damaged = found.damaged > 0 ? `; not ${counted(found.damaged, "event")}: ${found.damaged_first}` : "";
  return `${many}; searched ${extent} in ${seconds(found.seconds)}${newer}${damaged}${partly}${lacking}`;
}
