// What the server says (airflow_logio/ui), as far as the page reads it, and how it is asked.

import { events } from "./events";
import type { Named } from "./place";

export interface Amount {
  events: number;
  records: number;
}

export interface Spark {
  application: string;
  ui: string | null;
}

export interface LastError {
  incarnation: number;
  text: string;
  is_present: boolean;
}

/** Why a group has stopped, and the line of the author's own code, where the error is from there. */
export interface Cause {
  said: string;
  place: string;
}

interface Figures {
  state: string;
  /** Null while it has not stopped. */
  cause: Cause | null;
  condition: string;
  desired: string;
  since: number;
  incarnation: number;
  recoveries: number;
  commits: number;
  rss_bytes: number;
  process: string | null;
  heartbeat_seconds_ago: number | null;
  busy: number | null;
  blocked: number | null;
  events_per_second: number | null;
  call: string;
  spark: Spark | null;
  standby: string;
  /** As what its driver was submitted to a cluster manager; empty for a process of the launching machine. */
  cluster: string;
  received: Amount;
  sent: Amount;
  writes: number;
  pending_writes: number;
  lag: Amount;
  records_per_second: number;
  done: number | null;
}

export interface Group extends Figures {
  name: string;
  whole: string | null;
  last_error: LastError | null;
}

export interface ScalingRequest {
  request: number;
  replicas: number;
  state: string;
  by: string;
  reason: string;
  note: string;
  requested_at: number;
}

export interface Whole extends Figures {
  name: string;
  replicas_in_use: number;
  most: number;
  slots: number;
  slots_done: number;
  requests: ScalingRequest[];
}

export interface Operator {
  name: string;
  group: string;
  inputs: string[];
  outputs: string[];
}

export interface Connection {
  from: string;
  to: string;
  from_group: string;
  to_group: string;
  sent: Amount;
  acknowledged: Amount;
  lag: Amount;
  records_per_second: number;
  /** Its lag as a share of the run's backlog, at which senders wait; null inside a group, where none waits. */
  fullness: number | null;
  lag_age_seconds: number | null;
  lag_age_is_least: boolean;
}

export interface Happening {
  at: number;
  kind: string;
  group: string | null;
  incarnation: number | null;
  text: string;
}

export interface Quarantined {
  group: string;
  operator: string;
  slot: number | null;
  /** Null for those who may not read the data of the DAG. */
  input_set: string | null;
  error: string;
  since: number;
}

interface RunNames {
  uid: string;
  pipeline: string;
  dag_id: string;
  run_id: string;
  generation: number;
  /** The day or hour that it is for; null for a pipeline without partitions. */
  partition: string | null;
  /** The uid of the run that has begun in its place. */
  superseded_by: string | null;
  /** Why it was given up, as a person has said it. */
  because: string | null;
  state: string;
  created_at: number;
  ended_at: number | null;
  condition: string;
  next_step: string;
  /** The share of its input that all of it has done; null where that is not known. */
  progress: number | null;
}

export interface ListedRun extends RunNames {
  /** Only in the list of one DAG run. */
  groups?: string[];
  states: Record<string, number>;
  recoveries: number;
  /** The most pressing of those that have stopped. */
  stopped: { group: string; state: string; reason: string; place: string }[];
}

export interface RunList {
  at: number;
  runs: ListedRun[];
  /** Whether the log has more of them, which are older. */
  older: boolean;
  /** Why a DAG run has no run, and what to do, where that is known. */
  note?: string;
  /** DAG runs that have no run yet: what they wait for. */
  waiting?: { dag_id: string; dag_run_id: string; said: string }[];
}

/** A day or hour of a pipeline, as its youngest run is. What it has nothing of is left out. */
export interface Cell {
  key: string;
  state: "done" | "running" | "red" | "given up" | "removed" | "missing" | "no run yet" | "hidden";
  uid?: string;
  condition?: string;
  next_step?: string;
  cause?: string;
  because?: string;
  /** How many runs of it came before. */
  replaced?: number;
  /** Records of other days that came with it; left out where that is not counted. */
  late?: number;
  /** Day whose run brought records of this one, later than its runs → how many. */
  came?: Record<string, number>;
  /** Days that it was computed from, and that were replaced since. */
  stale?: string[];
  options?: Option[];
}

/** What only a person lets the next run of a day do, as a refusal has named it. */
export type Option = "take-over" | "empty";

export interface Calendar {
  what: string;
  zone: string;
  has_earlier: boolean;
  has_later: boolean;
  /** Runs of partitions that the pipeline no longer has. */
  others: number;
  /** `before`: places of the row in front of its first cell. */
  rows: { name: string; before: number; cells: Cell[] }[];
}

export interface Run extends RunNames {
  options: Option[];
  at: number;
  warnings: string[];
  ended: boolean;
  supervision: { by: string; last_look_by: string | null; last_look_seconds_ago: number | null };
  groups: Group[];
  wholes: Whole[];
  operators: Operator[];
  connections: Connection[];
  history: { total: number; latest: Happening[] };
  quarantine: { by_group: Record<string, number>; next_step: string; shown: Quarantined[] };
}

export interface Driver {
  group: string;
  incarnation: number;
  reason: string;
  claimed_at: number;
  registered_at: number | null;
  first_commit_at: number | null;
  ended_at: number | null;
  error: string | null;
  failed_at: string | null;
  process: string | null;
}

export interface Panel {
  group: string;
  drivers: Driver[];
  drivers_in_all: number;
  spark_ui: string;
  manager_page: string;
  lines: string[] | null;
}

/** What this person may do with the run. */
export interface Rights {
  change: boolean;
  data: boolean;
  /** What a retry does here; null for those who may not. */
  retry: string | null;
  /** Whether it puts back what is quarantined, too. */
  puts_back: boolean;
}

export interface LineagePorts {
  ports: { port: string; sent: number }[];
  in_all: number;
}

type About = Record<string, string | null> | null;

export interface LineageEvent {
  port: string;
  event: number;
  records: number | null;
  code: number;
  about: About;
}

export interface LineageRead {
  operator: string;
  connection: string;
  action: number;
  is_source: boolean;
  records: number | null;
  about: About;
}

export interface LineageStep {
  roots: LineageEvent[];
  ports: { id: string; port: string; events: number; records: number; first: LineageEvent[] }[];
  ports_in_all: number;
  reads: LineageRead[];
  reads_in_all: number;
  /** None are named to those who may not read the data of the DAG. */
  input_sets: InputSetName[];
  input_sets_in_all: number;
  cut: boolean;
  /** Forward: what has become of events where nothing was made from them. */
  unmade: Unmade[];
  unmade_cut: boolean;
}

interface InputSetName {
  operator: string;
  id: string;
}

/** Events with which an operator has done the same. */
export interface Unmade {
  operator: string;
  use: "unused_yet" | "waiting" | "aside" | "without_output" | "let_go" | "ignored" | "no_records";
  events: number;
  /** The first of them, as for a step. */
  input_sets: InputSetName[];
  input_sets_in_all: number;
}

interface FoundEvent {
  port: string;
  event: number;
  records: number;
}

/** By number, Input Set or time. */
export interface FoundByName {
  events: FoundEvent[];
  more: boolean;
  ports: number;
  ports_looked_at: number;
}

export interface FoundByValues {
  events: FoundEvent[];
  searched: number;
  sent: number;
  seconds: number;
  /** Events so large that only their first records were looked at. */
  partly: number;
  /** That no event has a column; empty otherwise. */
  lacking: string;
  /** Events whose records are missing or damaged in the payload store, and what is said of the first of them. */
  damaged: number;
  damaged_first: string;
  /** Where a search continues, to be posted as it is; null if all is searched. */
  before: number[] | null;
  /** Of steps together: events that the port has sent since the first of them. */
  newer?: number;
}

export type Found = FoundByName | FoundByValues;

/** Why a record is not among the output of a port: from there towards the sources. */
export interface WhyNot {
  is_there: boolean;
  searches: {
    said: string;
    events: Named[];
    events_in_all: number;
    /** What an operator has done with an event, and what it has made of it. */
    met: (Named & { said: string; made: Named[] })[];
    met_in_all: number;
    is_met_cut: boolean;
  }[];
  searches_in_all: number;
  notes: string[];
  notes_in_all: number;
  seconds: number;
}

/** How far the search of one port has come. */
export interface SearchedSoFar {
  port: string;
  slot: number | null;
  searched: number;
  sent: number;
  found: number;
}

export interface Table {
  columns: string[];
  rows: (string | null)[][];
  rows_in_all: number;
  columns_in_all: number;
}

/** Records of a port that a record was made from; `doubts` say why perhaps not all of them. */
export interface BehindPort {
  port: string;
  events: number;
  records: number;
  /** Events whose records are not in the log. */
  unknown: number;
  doubts: string[];
  columns: string[];
  rows: { event: number; place: number; source_row: number | null; values: (string | null)[] }[];
  /** Why no records are shown. */
  problem: string | null;
}

export interface Behind {
  ports: BehindPort[];
  ports_in_all: number;
  /** `problem`: why its rows are not shown. */
  reads: (Table & { operator: string; connection: string; by_key: boolean; problem: string | null })[];
  reads_in_all: number;
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Asks the server; `base` ends with a slash. */
export class Server {
  constructor(
    private readonly base: string,
    private readonly token: string | null,
  ) {}

  async get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return (await (await this.ask(path, { signal })).json()) as T;
  }

  /** As `get`, with the age of what the server says, in milliseconds: many viewers share a look at the log. */
  async look<T>(path: string, signal?: AbortSignal): Promise<{ value: T; age: number }> {
    const answer = await this.ask(path, { signal });
    return { value: (await answer.json()) as T, age: 1000 * Number(answer.headers.get("Age") ?? 0) };
  }

  /** Has something done, or asks with data, which no address may have. */
  async post<T>(path: string, body: object, signal?: AbortSignal): Promise<T> {
    return (await (await this.ask(path, posted(body, signal))).json()) as T;
  }

  /** As `post`, for an answer that takes long: `told` gets what comes before it. */
  async follow<T>(path: string, body: object, signal: AbortSignal, told: (name: string, data: unknown) => void): Promise<T> {
    const answer = await this.ask(path, posted(body, signal));
    try {
      for await (const [name, data] of events(answer)) {
        if (name === "answer") return data as T;
        if (name === "refused") {
          const { status, detail } = data as { status: number; detail: string };
          throw new Refused(status, detail);
        }
        told(name, data);
      }
    } catch (error) {
      if (error instanceof Refused || signal.aborted) throw error;
    }
    throw new Refused(0, "the connection to the server has ended before the answer was there");
  }

  private async ask(path: string, how: RequestInit): Promise<Response> {
    const headers = new Headers(how.headers);
    headers.set("Accept", "application/json, text/event-stream");
    if (this.token !== null) headers.set("Authorization", `Bearer ${this.token}`);
    let answer: Response;
    try {
      answer = await fetch(new URL(path, this.base), { ...how, headers, credentials: "same-origin" });
    } catch (error) {
      if (how.signal?.aborted) throw error;
      throw new Refused(0, "the server does not answer");
    }
    if (!answer.ok) throw new Refused(answer.status, await reason(answer));
    return answer;
  }
}

const posted = (body: object, signal?: AbortSignal): RequestInit => ({
  method: "POST",
  body: JSON.stringify(body),
  headers: { "Content-Type": "application/json" },
  signal,
});

async function reason(answer: Response): Promise<string> {
  try {
    const { detail } = (await answer.json()) as { detail?: unknown };
    if (typeof detail === "string") return detail;
  } catch {
    // not JSON: a proxy has answered
  }
  return `the server has answered ${answer.status}`;
}
