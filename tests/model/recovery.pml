/* A coordinator that dies or is deposed, and what its successor finds out from
 * the executors (docs/recovery.md).
 *
 * NODES executors with a rank each start an epoch and execute NAMES operations,
 * GENERATIONS times each, all submitted as soon as they can be. COORDINATORS
 * lead one after the other; the next one begins at any time. The one before may
 * be dead from then on, or go on for ever: it has no lease here, so this is
 * also the case of two leaders (docs/high-availability.md, point 4). Executors
 * go over to a later coordinator at any time, each by itself; whatever is in
 * its streams then stays there or arrives late. A process handles one event at
 * a time.
 *
 * A stream that breaks and is opened again with the same coordinator loses
 * nothing and repeats nothing, as its Link (common/wire/link.h; link_test)
 * numbers the messages, so only the break before the Welcome is here (BREAKS).
 * CRASHES executors are replaced by new ones. LATE times the coordinator gives
 * up nodes that are only slow. Otherwise time passes when nothing else can
 * happen. What a schedule does is in schedule.pml.
 *
 * Claims: no operation is executed twice, or out of turn, or in another order
 * than on another node; two nodes never have different decisions with one
 * number in an epoch; all operations end on all nodes, and no epoch ends unless an
 * executor has died or a node was late.
 *
 * Mutants: DECIDE_EARLY (does not wait for the nodes of the epoch),
 * START_UNKNOWN (does not wait if nobody who is back knows of an epoch),
 * FORGET_DECISIONS (executors keep no decisions), SETTLE_SENT (what is sent
 * counts as received by all), NO_REISSUE, REISSUE_ALL (also to those that have
 * it), OLD_NUMBERS (decisions count from the coordinator's own first one),
 * NO_START (who lacks EpochStart is not told), ANY_EXECUTOR (a new executor goes
 * on with its predecessor's epoch), KEEP_LAST (the number of the last decision outlives an
 * epoch, and lesser ones are not kept), NO_REPORT (what is open is not reported
 * again), KEEP_COUNTS, RESET_EARLY (a name's count begins anew never, or before
 * what is sent again), OLD_TERM (executors join an earlier coordinator),
 * OLD_STREAM (and read its stream after that), HALF_STATE (the first part of a
 * state counts as all of it), LOSE_AT_BREAK, REPEAT_AT_BREAK (the Link does not
 * do what is said above).
 */
#ifndef NODES
#define NODES 2
#endif
#ifndef COORDINATORS
#define COORDINATORS 2
#endif
#ifndef NAMES
#define NAMES 2
#endif
#ifndef GENERATIONS
#define GENERATIONS 1
#endif
#ifndef BREAKS
#define BREAKS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef LATE
#define LATE 0
#endif
#ifndef EPOCHS
#define EPOCHS (1 + 2 * CRASHES + 2 * LATE)
#endif
#define PER_EPOCH (NAMES * GENERATIONS)
#define DECISIONS (PER_EPOCH * EPOCHS + 1)
#define AT(t, n) ((t) * NODES + (n))
#define BIT(n) (1 << (n))
#define ALL ((1 << NODES) - 1)
#define NOBODY 255

mtype = { HELLO, PART, STATE, READY, ENDPOINT, PRESENT, FAILED,
          WELCOME, START, ENDPOINTS, RUN, END, RECOVERED };

/* From executors: kind, epoch (HELLO: whether it had another coordinator), name,
 * generation. To executors: kind, epoch (RECOVERED: with endpoints), decision,
 * name, generation, settled. */
chan up[COORDINATORS * NODES] = [8 + 4 * CRASHES + 4 * LATE] of { mtype, byte, byte, byte };
chan down[COORDINATORS * NODES] = [8 + 3 * PER_EPOCH] of { mtype, byte, byte, byte, byte, byte };

byte newest;          /* coordinator that has begun */
byte breaks, crashes, late;

/* --- Executors (worker/core, worker/network/session.h) --------------------- */
typedef Executor {
  byte dials;         /* NOBODY: no one */
  byte stream;        /* the one that it reads */
  byte joined;        /* coordinator; NOBODY: none. CoordinatorChoice */
  bool recovering;    /* between OnCoordinatorReplaced and OnRecovered */
  bool ready;         /* its rank waits for an epoch: Phase::kReady */
  byte epoch;         /* ExecutorCore::start_; 0: none */
  bool connected;
  bool ended;         /* ExecutorCore::end_ */
  byte last;          /* DecisionLog::last_ */
  byte settled;       /* up to here, none is kept */
  byte done[NAMES];   /* operations executed */
  byte count[NAMES];  /* of them, since the ids were forgotten */
};
Executor x[NODES];
/* DecisionLog::kept_ and what is known beyond it: name + 1 and generation. */
typedef Log { byte name[DECISIONS + 1]; byte generation[DECISIONS + 1] };
Log kept[NODES];

/* A NodeState on its way, by coordinator and node. */
typedef Report {
  byte epoch; bool connected; bool ended; byte last;
  byte name[DECISIONS + 1]; byte generation[DECISIONS + 1]
};
Report said[COORDINATORS * NODES];

/* --- Coordinators (coordinator/core) --------------------------------------- */
#define NONE 0
#define AWAITED 1     /* Recovery::Await: owes its NodeState */
#define TOLD 2        /* Recovery::Take */
#define TOO_LATE 3    /* owes its NodeState, but nobody waits for it */
#define OPEN 4
typedef Coordinator {
  byte session[NODES];
  byte stream[NODES];
  bool cut[NODES];    /* ExecutorSession::state: a first part */
  byte lost;          /* Recovery::lost_; nodes */
  bool recovering;    /* Job::recovery_ */
  bool recovered;     /* Job::recovered_ */
  byte epoch;         /* Job::epoch_number_ */
  byte said_epoch;
  bool runs;          /* Job::epoch_ */
  byte ready;         /* Gathering; nodes */
  byte endpoints;     /* nodes */
  byte decision;      /* EpochNodes::decision_ */
  byte last;          /* JobShard::last_decision_ */
  int unsettled[NODES]; /* ExecutorSession::unsettled; bits of decisions */
  byte present[NAMES]; /* nodes */
  byte generation[NAMES];
};
Coordinator c[COORDINATORS];

/* For the claims only. */
typedef Order { byte name[PER_EPOCH] };
Order order[EPOCHS + 1];
Log decided;          /* by number: name + 1, epoch (as `generation`) */
bool due;             /* the newest coordinator's deadline has passed */

#if NAMES > 1
#define DONE(n) (x[n].done[0] + x[n].done[1])
#else
#define DONE(n) (x[n].done[0])
#endif

/* --- What an executor does ------------------------------------------------- */

#define SAYS(n) (x[n].joined != NOBODY && x[n].dials == NOBODY && !x[n].recovering)

/* ExecutorEpoch::ReportPending: each name's next operation is submitted as soon
 * as the one before has ended. */
inline Submit(n, name_) {
  if
  :: SAYS(n) && x[n].connected && !x[n].ended && x[n].done[name_] < GENERATIONS ->
     up[AT(x[n].joined, n)]!PRESENT(x[n].epoch, name_, x[n].count[name_] + 1)
  :: else
  fi
}

inline SubmitAll(n) {
  Submit(n, 0);
#if NAMES > 1
  Submit(n, 1)
#endif
}

inline Keep(n, d, name_, generation_, settled_) {
  if
  :: settled_ > x[n].settled -> x[n].settled = settled_
  :: else
  fi;
  i = 0;
  do
  :: i <= x[n].settled -> kept[n].name[i] = 0; kept[n].generation[i] = 0; i++
  :: else -> break
  od;
  assert(d > x[n].last);
  x[n].last = d;
#ifndef FORGET_DECISIONS
  kept[n].name[d] = name_ + 1;
  kept[n].generation[d] = generation_
#endif
}

/* ExecutorEpoch::OnExecute */
inline Execute(n, name_, generation_) {
  assert(x[n].connected && !x[n].ended);
  assert(x[n].done[name_] < GENERATIONS);
  assert(generation_ == x[n].count[name_] + 1);
  i = DONE(n);
  assert(order[x[n].epoch].name[i] == 0 || order[x[n].epoch].name[i] == name_ + 1);
  order[x[n].epoch].name[i] = name_ + 1;
  x[n].done[name_]++;
  x[n].count[name_]++
}

/* The ranks of the node begin anew, after an epoch that has ended. */
inline SayReady(n) {
  if
  :: SAYS(n) && x[n].ready -> up[AT(x[n].joined, n)]!READY(x[n].epoch, 0, 0)
  :: else
  fi
}

/* ExecutorCore::FillState, at the time of OnCoordinatorReplaced */
inline FillState(n, t) {
  s = AT(t, n);
  said[s].epoch = x[n].epoch;
  said[s].connected = x[n].connected;
  said[s].ended = x[n].ended;
  said[s].last = x[n].last;
  i = 0;
  do
  :: i <= DECISIONS ->
     said[s].name[i] = kept[n].name[i];
     said[s].generation[i] = kept[n].generation[i];
     i++
  :: else -> break
  od
}

/* CoordinatorSession::OnWelcome, CoordinatorChoice::Join */
inline Welcomed(n, t) {
  x[n].dials = NOBODY;
  if
  :: x[n].joined == NOBODY ->
     x[n].joined = t;
     SayReady(n)
  :: else ->
     x[n].joined = t;
     x[n].recovering = true;
#ifdef RESET_EARLY
     x[n].count[0] = 0;
#if NAMES > 1
     x[n].count[1] = 0;
#endif
#endif
     FillState(n, t);
     up[AT(t, n)]!PART(0, 0, 0);
     up[AT(t, n)]!STATE(0, 0, 0)
  fi
}

/* ExecutorCore::OnRecovered */
inline Recovered(n, endpoints_) {
  x[n].recovering = false;
#ifndef KEEP_COUNTS
  x[n].count[0] = 0;
#if NAMES > 1
  x[n].count[1] = 0;
#endif
#endif
  if
  :: x[n].epoch > 0 && !x[n].ended && (endpoints_ || !x[n].connected) ->
     up[AT(x[n].joined, n)]!ENDPOINT(x[n].epoch, 0, 0)
  :: x[n].epoch > 0 && x[n].ended && !x[n].ready ->
     up[AT(x[n].joined, n)]!FAILED(x[n].epoch, 0, 0)
  :: else
  fi;
  SayReady(n);
#ifndef NO_REPORT
  SubmitAll(n)
#endif
}

inline Ended(n) {
  x[n].ended = true;
  x[n].connected = false
}

/* ExecutorCore::OnCoordinator */
inline FromCoordinator(n, t) {
  down[AT(t, n)]?kind(e, d, name, generation, settled);
  if
  :: kind == WELCOME -> Welcomed(n, t)
  :: kind == START ->
     /* OnEpochStart. Not in Phase::kReady: it crossed a departure. */
     if
     :: x[n].ready ->
        assert(e > x[n].epoch);
        x[n].ready = false;
        x[n].epoch = e;
        x[n].ended = false;
        x[n].connected = false;
        x[n].done[0] = 0; x[n].count[0] = 0;
#if NAMES > 1
        x[n].done[1] = 0; x[n].count[1] = 0;
#endif
#ifndef KEEP_LAST
        x[n].last = 0;  /* DecisionLog::BeginEpoch */
#endif
        x[n].settled = 0;
        i = 0;
        do
        :: i <= DECISIONS -> kept[n].name[i] = 0; kept[n].generation[i] = 0; i++
        :: else -> break
        od;
        if
        :: SAYS(n) -> up[AT(t, n)]!ENDPOINT(e, 0, 0)
        :: else
        fi
     :: else
     fi
  :: kind == ENDPOINTS ->
     if
     :: e == x[n].epoch && !x[n].ended && !x[n].connected ->
        x[n].connected = true;
        SubmitAll(n)
     :: else  /* told again by a coordinator that has replaced another */
     fi
  :: kind == RUN ->
     c[t].unsettled[n] = c[t].unsettled[n] & ~(1 << d);  /* acknowledged */
     assert(decided.generation[d] != e || decided.name[d] == name + 1);
     decided.name[d] = name + 1;
     decided.generation[d] = e;
     if
     :: e == x[n].epoch && !x[n].ended ->
        Keep(n, d, name, generation, settled);
        Execute(n, name, generation);
        Submit(n, name)
     :: else  /* the epoch has ended here */
     fi
  :: kind == END ->
     if
     :: e == x[n].epoch && !x[n].ended -> Ended(n)
     :: else
     fi
  :: kind == RECOVERED ->
     if
     :: x[n].recovering -> Recovered(n, e)
     :: else
     fi
  fi;
  kind = 0; e = 0; d = 0; name = 0; generation = 0; settled = 0; i = 0; s = 0
}

inline Drop(t, n) {
  do
  :: nempty(down[AT(t, n)]) -> down[AT(t, n)]?_(_, _, _, _, _)
  :: empty(down[AT(t, n)]) -> break
  od
}

inline DropUp(t, n) {
  do
  :: nempty(up[AT(t, n)]) -> up[AT(t, n)]?_(_, _, _)
  :: empty(up[AT(t, n)]) -> break
  od
}

/* The stream has broken, or was never there: GrpcTransport::OneStream. Nothing
 * of the old stream is read any more. */
inline Dial(n, t) {
  if
  :: x[n].joined != NOBODY ->
#ifndef OLD_STREAM
     Drop(x[n].joined, n);
#endif
     if
     :: nempty(up[AT(x[n].joined, n)]) -> DropUp(x[n].joined, n)
     :: skip  /* or it arrives late */
     fi
  :: else
  fi;
  x[n].dials = t;
  up[AT(t, n)]!HELLO(x[n].joined != NOBODY, x[n].stream, 0)
}

#ifdef OLD_TERM  /* once */
#define EARLIER(n, t) (breaks == 0 && t < x[n].joined)
#define COUNT_DIAL(n, t)                                         \
  if                                                             \
  :: x[n].joined != NOBODY && t < x[n].joined -> breaks = 1      \
  :: else                                                        \
  fi
#else
#define EARLIER(n, t) false
#define COUNT_DIAL(n, t) skip
#endif
#define MAY_DIAL(n, t)                       \
  (t <= newest && x[n].dials == NOBODY &&    \
   (x[n].joined == NOBODY || t > x[n].joined || EARLIER(n, t)))

#ifdef OLD_STREAM
#define READS(n, t) (nempty(down[AT(t, n)]) && \
                     (x[n].dials == t || x[n].joined != NOBODY && t <= x[n].joined))
#else
#define READS(n, t) \
  (nempty(down[AT(t, n)]) && (x[n].dials == t || x[n].dials == NOBODY && x[n].joined == t))
#endif

#if COORDINATORS > 2
#define OF_ANY(t, what)              \
  :: atomic { what(n, 0) -> t = 0 } \
  :: atomic { what(n, 1) -> t = 1 } \
  :: atomic { what(n, 2) -> t = 2 }
#else
#define OF_ANY(t, what)              \
  :: atomic { what(n, 0) -> t = 0 } \
  :: atomic { what(n, 1) -> t = 1 }
#endif

proctype Node(byte n) {
  mtype kind;
  byte e, d, name, generation, settled, i, s, t;
end:
  do
  :: atomic {
       if
       OF_ANY(t, READS)
       fi;
       FromCoordinator(n, t);
       t = 0
     }
  :: atomic {
       if
       OF_ANY(t, MAY_DIAL)
       fi;
       COUNT_DIAL(n, t);
       Dial(n, t);
       t = 0
     }
#if BREAKS > 0
  :: atomic { /* before the Welcome */
       breaks < BREAKS && x[n].dials != NOBODY ->
       breaks++;
       x[n].stream++;
       t = x[n].dials;
       Drop(t, n);
       if
       :: true
       :: t < newest -> t = newest
       fi;
       Dial(n, t);
       t = 0
     }
#endif
  /* Its ranks begin again. */
  :: atomic {
       x[n].ended && !x[n].ready && SAYS(n) ->
       assert(x[n].epoch < EPOCHS);
       x[n].ready = true;
       SayReady(n)
     }
#if CRASHES > 0
  :: atomic {
       crashes < CRASHES && DONE(n) < PER_EPOCH ->
       crashes++;
       if
       :: x[n].joined != NOBODY -> Drop(x[n].joined, n)
       :: else
       fi;
       if
       :: x[n].dials != NOBODY -> Drop(x[n].dials, n)
       :: else
       fi;
       x[n].dials = NOBODY; x[n].joined = NOBODY; x[n].recovering = false;
       x[n].ready = true; x[n].epoch = 0; x[n].connected = false;
       x[n].ended = false; x[n].last = 0; x[n].settled = 0;
       x[n].done[0] = 0; x[n].count[0] = 0;
#if NAMES > 1
       x[n].done[1] = 0; x[n].count[1] = 0;
#endif
       i = 0;
       do
       :: i <= DECISIONS -> kept[n].name[i] = 0; kept[n].generation[i] = 0; i++
       :: else -> break
       od;
       x[n].stream++;
       i = 0
     }
#endif
#if defined(LOSE_AT_BREAK)
  :: atomic {
       SAYS(n) && nempty(down[AT(x[n].joined, n)]) && breaks < 1 ->
       breaks++;
       Drop(x[n].joined, n)
     }
#endif
#if defined(REPEAT_AT_BREAK)
  :: atomic {
       SAYS(n) && down[AT(x[n].joined, n)]?[RUN] && breaks < 1 ->
       breaks++;
       down[AT(x[n].joined, n)]?<kind, e, d, name, generation, settled>;
       down[AT(x[n].joined, n)]!kind(e, d, name, generation, settled);
       kind = 0; e = 0; d = 0; name = 0; generation = 0; settled = 0
     }
#endif
  od
}

/* --- What a coordinator does ----------------------------------------------- */

/* What is written to a stream that nobody reads any more is lost. */
inline Send(t, to, kind_, e_, d_, name_, generation_, settled_) {
#ifndef OLD_STREAM
  if
  :: (x[to].joined == t || x[to].dials == t) && x[to].stream == c[t].stream[to] ->
#endif
     assert(nfull(down[AT(t, to)]));
     down[AT(t, to)]!kind_(e_, d_, name_, generation_, settled_)
#ifndef OLD_STREAM
  :: else
  fi
#endif
}

/* To the nodes of the epoch. */
inline ToAll(t, kind_, e_, d_, name_, generation_, settled_) {
  i = 0;
  do
  :: i < NODES ->
     if
     :: c[t].session[i] == OPEN ->
        if
        :: kind_ == RUN -> c[t].unsettled[i] = c[t].unsettled[i] | (1 << d_)
        :: else
        fi;
        Send(t, i, kind_, e_, d_, name_, generation_, settled_)
     :: else
     fi;
     i++
  :: else -> break
  od
}

inline EndEpoch(t) {
  if
  :: c[t].runs ->
     c[t].runs = false;
     ToAll(t, END, c[t].epoch, 0, 0, 0, 0)
  :: else
  fi
}

/* JobShard::Settled: all decisions below the first one that a node has not
 * acknowledged. A node that has gone over acknowledges nothing more. */
inline Settled(t) {
  settled = c[t].last;
#ifndef SETTLE_SENT
  i = 0;
  do
  :: i < NODES ->
     d = 1;
     do
     :: d <= settled && (c[t].unsettled[i] & (1 << d)) -> settled = d - 1; break
     :: d <= settled && !(c[t].unsettled[i] & (1 << d)) -> d++
     :: d > settled -> break
     od;
     i++
  :: else -> break
  od
#endif
}

/* Job::StartIfComplete */
inline StartIfComplete(t) {
  if
  :: !c[t].recovering && !c[t].runs && c[t].ready == ALL ->
     c[t].epoch = (c[t].said_epoch > c[t].epoch -> c[t].said_epoch : c[t].epoch) + 1;
     c[t].ready = 0;
     Begin(t);
     ToAll(t, START, c[t].epoch, 0, 0, 0, 0)
  :: else
  fi
}

inline Begin(t) {
  c[t].runs = true;
  c[t].endpoints = 0;
  c[t].present[0] = 0; c[t].generation[0] = 0;
#if NAMES > 1
  c[t].present[1] = 0; c[t].generation[1] = 0;
#endif
}

/* Recovery::LastStart, into e; 0: none. */
inline LastStart(t) {
  e = 0;
  i = 0;
  do
  :: i < NODES ->
     if
     :: c[t].session[i] == TOLD && said[AT(t, i)].epoch > e -> e = said[AT(t, i)].epoch
     :: else
     fi;
     i++
  :: else -> break
  od
}

/* Recovery::Complete */
inline Complete(t) {
  complete = c[t].recovering;
  LastStart(t);
#ifdef START_UNKNOWN
  missing = (e == 0 -> 0 : ALL);
#else
  complete = complete && e > 0;
  missing = ALL;
#endif
  i = 0;
  do
  :: i < NODES ->
#ifndef DECIDE_EARLY
     complete = complete && c[t].session[i] != AWAITED &&
                (c[t].session[i] == TOLD || (c[t].lost & BIT(i)) || !(missing & BIT(i)));
#endif
     i++
  :: else -> break
  od
}

#define HEARD(t, i) (c[t].session[i] == TOLD && said[AT(t, i)].epoch == e)

/* It must have heard, so it is another executor. */
#ifdef ANY_EXECUTOR
#define IS_NEW(t, i) false
#else
#define IS_NEW(t, i) (!HEARD(t, i) && all_have_heard)
#endif

/* Job::FinishRecovery, Recovery::LastEpoch, CoordinatorEpoch::Restore */
inline FinishRecovery(t) {
  c[t].recovering = false;
  c[t].recovered = true;
  c[t].lost = 0;
  LastStart(t);
  all_have_heard = false;
  ended = false;
  connected = true;
  i = 0;
  do
  :: i < NODES ->
     if
     :: HEARD(t, i) ->
        all_have_heard = all_have_heard || said[AT(t, i)].connected;
        ended = ended || said[AT(t, i)].ended;
        connected = connected && said[AT(t, i)].connected
     :: else -> connected = false
     fi;
#ifndef OLD_NUMBERS
     if
     :: c[t].session[i] == TOLD && said[AT(t, i)].last > c[t].decision ->
        c[t].decision = said[AT(t, i)].last
     :: else
     fi;
#endif
     i++
  :: else -> break
  od;
  i = 0;
  do
  :: i < NODES ->
     ended = ended || c[t].session[i] != TOLD || IS_NEW(t, i);
     i++
  :: else -> break
  od;
  if
  :: e > c[t].epoch -> c[t].epoch = e
  :: else
  fi;
  if
  :: e > 0 && !ended -> Begin(t)
  :: else
  fi;
  i = 0;
  do
  :: i < NODES && c[t].session[i] == TOLD ->
     s = AT(t, i);
     c[t].session[i] = OPEN;
     if
     :: c[t].runs ->
#ifndef NO_START
        if
        :: said[s].epoch != e -> Send(t, i, START, e, 0, 0, 0, 0)
        :: else
        fi;
#endif
        Reissue(t, i);
        Send(t, i, RECOVERED, !connected, 0, 0, 0, 0)
     :: else ->
        if
        :: said[s].epoch > 0 && !said[s].ended -> Send(t, i, END, said[s].epoch, 0, 0, 0, 0)
        :: else
        fi;
        Send(t, i, RECOVERED, 0, 0, 0, 0, 0)
     fi;
     i++
  :: i < NODES && c[t].session[i] == AWAITED -> c[t].session[i] = TOO_LATE; i++
  :: i < NODES && c[t].session[i] != TOLD && c[t].session[i] != AWAITED -> i++
  :: i == NODES -> break
  od;
  i = 0;
  do
  :: i < NODES ->
     if
     :: c[t].session[i] != TOO_LATE -> Forget(AT(t, i))
     :: else
     fi;
     i++
  :: else -> break
  od
}

/* No claim depends on it; it has less states. */
inline Forget(s_) {
  said[s_].epoch = 0; said[s_].connected = false; said[s_].ended = false;
  said[s_].last = 0;
  j = 0;
  do
  :: j <= DECISIONS -> said[s_].name[j] = 0; said[s_].generation[j] = 0; j++
  :: else -> break
  od
}

/* To node `to`, the decisions that others have said. */
inline Reissue(t, to) {
#ifdef REISSUE_ALL
  d = 1;
#else
  d = said[AT(t, to)].last + 1;
#endif
  do
  :: d <= DECISIONS ->
     j = 0;
     do
     :: j < NODES && said[AT(t, j)].epoch == e && said[AT(t, j)].name[d] > 0 ->
#ifndef NO_REISSUE
        c[t].unsettled[to] = c[t].unsettled[to] | (1 << d);
        if
        :: d > c[t].last -> c[t].last = d
        :: else
        fi;
        Send(t, to, RUN, e, d, said[AT(t, j)].name[d] - 1, said[AT(t, j)].generation[d], 0);
#endif
        break
     :: j < NODES && !(said[AT(t, j)].epoch == e && said[AT(t, j)].name[d] > 0) -> j++
     :: j == NODES -> break
     od;
     d++
  :: else -> break
  od
}

/* JobShard::Lose, Job::Lost, Recovery::Forget */
inline Lose(t, n_) {
  if
  :: c[t].recovering && (c[t].session[n_] == AWAITED || c[t].session[n_] == TOLD) ->
     c[t].lost = c[t].lost | BIT(n_)
  :: else
  fi;
  c[t].session[n_] = NONE;
  c[t].cut[n_] = false;
  c[t].unsettled[n_] = 0;
  c[t].ready = c[t].ready & ~BIT(n_);
  EndEpoch(t)
}

#ifdef START_UNKNOWN
#define GOES_ON(t) (c[t].epoch > 0)
#else
#define GOES_ON(t) (c[t].epoch > 0 || c[t].recovered)
#endif

/* JobShard::Open, OpensAgain, Job::Await */
inline Hello(t, n, before, stream_) {
  if
  :: before && !c[t].cut[n] && (c[t].session[n] == AWAITED || c[t].session[n] == TOO_LATE) ->
     c[t].unsettled[n] = 0
  :: else ->
     if
     :: c[t].session[n] != NONE -> Lose(t, n)
     :: else
     fi;
     if
     :: !before -> c[t].session[n] = OPEN
     :: before && !c[t].recovering && GOES_ON(t) -> c[t].session[n] = TOO_LATE
     :: else ->
        c[t].session[n] = AWAITED;
        c[t].lost = c[t].lost & ~BIT(n);
        c[t].recovering = true
     fi
  fi;
  c[t].stream[n] = stream_;
  Send(t, n, WELCOME, 0, 0, 0, 0, 0)
}

/* Job::OnNodeState, TellTooLate */
inline TakeState(t, n) {
  c[t].cut[n] = false;
  if
  :: c[t].session[n] == TOO_LATE ->
     c[t].session[n] = OPEN;
     s = AT(t, n);
     if
     :: said[s].epoch > c[t].said_epoch -> c[t].said_epoch = said[s].epoch
     :: else
     fi;
     if
     :: said[s].epoch > 0 && !said[s].ended -> Send(t, n, END, said[s].epoch, 0, 0, 0, 0)
     :: else
     fi;
     Forget(s);
     Send(t, n, RECOVERED, 0, 0, 0, 0, 0)
  :: c[t].session[n] == AWAITED ->
     c[t].session[n] = TOLD
  :: else
  fi
}

/* CoordinatorEpoch::OnPresence, Issue */
inline Present(t, n, name_, generation_) {
  assert(generation_ == c[t].generation[name_] + 1);
  c[t].present[name_] = c[t].present[name_] | BIT(n);
  if
  :: c[t].present[name_] == ALL ->
     c[t].present[name_] = 0;
     c[t].generation[name_]++;
     Settled(t);
     c[t].decision++;
     c[t].last = c[t].decision;
     assert(c[t].decision <= DECISIONS);
     ToAll(t, RUN, c[t].epoch, c[t].decision, name_, c[t].generation[name_], settled)
  :: else
  fi
}

#define CURRENT (c[t].runs && epoch == c[t].epoch)

inline FromExecutor(t, n) {
  up[AT(t, n)]?kind(epoch, name, generation);
  if
  :: kind == HELLO -> Hello(t, n, epoch, name)
  :: kind == PART ->
#ifdef HALF_STATE
     j = 0;
     do
     :: j <= DECISIONS -> said[AT(t, n)].name[j] = 0; j++
     :: else -> break
     od;
     TakeState(t, n)
#else
     c[t].cut[n] = true
#endif
  :: kind == STATE -> TakeState(t, n)
  :: kind == READY ->
     assert(!c[t].runs);
     c[t].ready = c[t].ready | BIT(n);
     StartIfComplete(t)
  :: kind == FAILED ->
     if
     :: CURRENT -> EndEpoch(t)
     :: else
     fi
  :: kind == ENDPOINT ->
     if
     :: CURRENT ->
        assert(!(c[t].endpoints & BIT(n)));
        c[t].endpoints = c[t].endpoints | BIT(n);
        if
        :: c[t].endpoints == ALL -> ToAll(t, ENDPOINTS, c[t].epoch, 0, 0, 0, 0)
        :: else
        fi
     :: else
     fi
  :: kind == PRESENT ->
     if
     :: CURRENT -> Present(t, n, name, generation)
     :: else
     fi
  fi
}

inline Clear() {
  n = 0; takes = false; gone = false; over = false; kind = 0; epoch = 0; name = 0; generation = 0;
  e = 0; d = 0; settled = 0; i = 0; j = 0; s = 0; missing = 0;
  all_have_heard = false; ended = false; connected = false; complete = false
}

/* While a job recovers, what is no state is held (JobShard::Payload). */
#define HANDLES(t, n)                                                     \
  (t <= newest && nempty(up[AT(t, n)]) &&                                 \
   (!c[t].recovering || up[AT(t, n)]?[HELLO] || up[AT(t, n)]?[PART] ||    \
    up[AT(t, n)]?[STATE]))

proctype Leader(byte t) {
  mtype kind;
  byte n, epoch, name, generation, e, d, settled, i, j, s, missing;
  bool takes, gone, over, all_have_heard, ended, connected, complete;
end:
  do
  :: atomic {
       if
       :: HANDLES(t, 0) -> takes = true
       :: HANDLES(t, 1) -> takes = true; n = 1
#if NODES > 2
       :: HANDLES(t, 2) -> takes = true; n = 2
#endif
       /* Recovery::deadline, when all who come back have come back. */
       :: t == newest && due -> due = false; over = true
#if LATE > 0
       :: t <= newest && late < LATE && c[t].recovering -> late++; over = true
       :: t <= newest && late < LATE && c[t].session[0] != NONE && x[0].joined != t && x[0].dials != t ->
          late++;
          gone = true
#endif
       fi;
       if
       :: takes -> FromExecutor(t, n)
       :: gone -> Lose(t, 0)
       :: else
       fi;
       Complete(t);
       if
       :: complete || over -> FinishRecovery(t)
       :: else
       fi;
       Clear()
     }
  :: atomic { t == newest && newest < COORDINATORS - 1 -> newest++ }
  od
}

proctype Time() {
  byte i;
  do
  :: atomic {
       timeout ->
       if
       :: c[newest].recovering -> due = true
       :: else -> break
       fi
     }
  od;
  i = 0;
  do
  :: i < NODES ->
     assert(DONE(i) == PER_EPOCH && !x[i].ended);
     assert(x[i].epoch == x[0].epoch);
     assert(crashes + late > 0 || x[i].epoch == 1);
     i++
  :: else -> break
  od
}

init {
  byte i;
  atomic {
    do
    :: i < NODES ->
       x[i].dials = NOBODY; x[i].joined = NOBODY; x[i].ready = true;
       run Node(i);
       i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < COORDINATORS -> run Leader(i); i++
    :: else -> break
    od;
    run Time()
  }
}
