"""The LOG.io algorithms as values in, values out: no clock, no database, no threads, no Spark, no Airflow.

For a reader of the paper
=========================
The paper gives its algorithms as steps of a running operator: "use a transaction to ...", "send ...". Here no
algorithm does anything. It takes what the log says and what has just been observed, and returns *effects*: values
that say what one step wants in the log. The program that runs the algorithm applies them. A driver does so with threads and a
database. The simulator does so one step at a time, with a seed in place of threads and time, and may crash between
any two of them. Both run the objects of this package, so a schedule that the simulator finds is a schedule of the
code that ships.

Where the paper is
------------------
================================= ======================================================================================
Section 2, its nouns              `values`: ports, events, statuses
Algorithm 1, and 6 (sources)      `source`
Algorithm 2 (state update)        `operator.OperatorProtocol.state_update`, with the filter and the marks in `context`
Algorithm 3 (generation)          `group` and `operator`; `ledger` decides what of a step must be in the log
Algorithm 4 (side-effect reads)   `group` logs them; the read itself is the author's, through `logic.Output`
Algorithm 5, and 8 (writes)       `writes`; what a marker at the external system allows: `external_rules`
Algorithm 7 (output events)       no code: the log is the channel (design D5). A receiver fetches what is undone
Algorithm 9 (processing)          `recovery` orders what is read, `group.GroupProtocol.rebuild` and `resume` use it
Algorithms 10 and 11 (replay)     `replay`: the receiver makes a body again, no operator is taken back
Algorithms 12 and 13 (scaling)    `replicas`: slots move between replicas (design D11)
Section 3.4, the LOG.io context   `context`
Section 4, states of an operator  `states` (of a group), `liveness` (when is a driver dead), `life` (epochs of a driver)
Every "use a transaction"         `effects` says what is in one, `commit` in which order it happens
================================= ======================================================================================

`loop.GroupLoop` is the policy that joins them: what an epoch of a group does next. Start there to see the whole, or
with `commit` to see why nothing is lost or done twice.

What an effect is
-----------------
A value of `effects`, complete when its step ends: rows to add, events to assign, Input Sets that are done, a state, a
relationship of lineage. Being values, effects can be concatenated. Group commit is the effects of many steps in one
transaction; fusion is the effects of many operators in one step; a simulated crash is a list of effects that is
dropped. For that, a state must be serialized when its step ends. Serialized later, at the commit, it would hold
events that this commit does not cover; after a crash they would be delivered again and filtered as used (design D1).

Why assignments ride in the next transaction
--------------------------------------------
In the paper a transaction acknowledges each event (Algorithm 2 Step 2), and another one logs the Output Set
(Algorithm 3 Step 4). The first is most of its overhead, and is needed only before something that depends on the event
can be seen elsewhere. So here an assignment waits for the operator's next transaction, or a timer
(`loop.FLUSH_SECONDS`). An event that is not acknowledged yet is delivered again after a crash. Two rules make that
safe (design D2):

- A transaction carries the assignments of *all* events that its state reflects, per port and without a gap. The mark
  of a port is the greatest event assigned, and the filter drops everything at or below it. If the mark passed an
  unassigned event, that event would be dropped for ever.
- Every transaction that assigns events or marks them done stores context and global state, if they have changed, of
  every operator. The paper stores a state only where the generation reads one, and would lose counts when another
  function consumes the event.

Why a trigger is an effect
--------------------------
The paper evaluates a condition and generates (Algorithm 2 Step 3). A crash in between would reload more events than
the condition had seen: a count trigger would never fire at its number again, or the generation would read a later
state. So a trigger commits with the assignment that caused it, with the global state as it was then, if the
generation reads it. Recovery loads everything acknowledged *without* triggering. Then it generates what was
triggered, in order, and only then evaluates conditions (Algorithm 9 Step 2.c, hole H2). A generation marks done
exactly the rows that it has used; if the log holds another number of them, the commit is refused.

The fence
---------
The paper has one driver per operator, and the engine knows when it is dead. A real driver may be stopped, cut off, or
slow, and come back. So every transaction of a driver begins with one statement: raise the commit number of my
incarnation and epoch from n - 1 to n. One row changed, or nothing is written. A recovery raises the incarnation
*before* it reads the log, in a transaction of its own. Then each commit of the old driver is either in what the
recovery reads, or is refused. (A check by SELECT is not enough: the old driver could commit after the recovery has
read.) A driver whose memory is void raises the epoch in the same way before it rebuilds itself (design D8, `life`).

Unknown outcomes
----------------
A commit may be durable though its acknowledgement is lost. Sending it again would do it twice; dropping it would lose
it. The fence row answers: it names the last commit number. It is read under its lock, so that a transaction that is
still under way has ended (`commit.CommitAttempt`, design D3). A write action at an external system is the same
question, asked of the marker there: the system applies the action and raises the marker in one step, and refuses what
the marker has passed (`external_rules`). A status question followed by a write, as in Algorithm 8 Step 2.a, would be
passed by two drivers at once.

What else differs from the paper
--------------------------------
- *An event is not sent; it is a row.* A receiver pulls the undone, unassigned rows of its ports in the order of their
  ids, which the sender allocates and never the database (design D5). Sending, resending (Algorithms 6 and 7) and the
  reliable channel are then one thing.
- *Operators of one group fail together.* An event between two of them needs a row only if it outlives its step in an
  event state, or lies on a data lineage path (design D4, `ledger`).
- *The filter is "less than or equal"*, against a stored mark: once done rows are collected, neither marks nor ids can
  be computed from EVENT_LOG (hole H1).
- *End of stream is a logged event* (`values.Kind`), so that windows are flushed, Mergers end, and a run can finish
  (design D9).
- *Writes before sending* (Steps 5 and 6 of Algorithm 3 swapped): the Output Set is logged as *held* and released by
  the transaction that logs the success of its writes (`context.HeldOutput`).
- *Replay takes no operator back* (Section 5): what is missing is a body, and a receiver can make it again from the
  Input Set of its sender, which the lineage names (`replay`).
- *An Input Set whose generation raises can be set aside* (quarantine), and put back by a person (`context.reopen`).

The reasons at length are in docs/design.md. The argument of Section 4.4 carries over with a group in place of an
operator, and a commit in place of each transaction.
"""
