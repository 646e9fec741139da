/* Eager operations (docs/board.md, sections 4 and 8): pool buffers, the claim
 * of the reduction, the commit, late ranks, aborts, deaths, departures.
 *
 * One name, several generations. Each rank copies its input into a buffer of
 * its pool, unless it sees that it is the last; arrives, and looks; the last
 * arriver claims, reduces into the next rank's buffer, commits and then places
 * the ticket. If a rank had no buffer the operation goes by rendezvous, of which
 * only the outcome is modelled. tickets.pml verifies that tickets are placed
 * once; here a ticket is a flag.
 *
 * Build with -DDEATH: a rank may die at any step, after which (or at any time)
 * the executor aborts. -DLEAVE: the last rank may leave between two operations
 * instead, and the operations that need it fail.
 *
 * Claims: a reduction reads the inputs of its generation, and a delivery its
 * result; no two ranks return different outcomes of an operation; every
 * operation ends.
 *
 * Mutants: CLAIM_BY_STORE, REUSE_EARLY, REUSE_UNDECIDED, NO_KEEP,
 * NO_OVERRULE, TICKET_ONLY, LOOK_THEN_COUNT, RANK_LOOKS_FIRST.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef GENERATIONS
#define GENERATIONS 3
#endif
#ifndef BUFFERS
#define BUFFERS 2
#endif
#define NOBODY 9
#define NONE 9 /* arrived without a buffer: rendezvous */
#define OWN 8  /* arrived last, and reads its input where it is */
#define HOLDER(rank) (((rank) + 1) % RANKS)

mtype = { RUNNING, FAILED, COMMITTED, ABORTED, REDUCING, SUPERSEDED };
mtype = { FREE, INPUT, RESULT };   /* contents of a buffer */
mtype = { UNKNOWN, OK, ERROR };    /* outcome that a rank returns */

/* Arrivals: the generation, and the buffers of the last two. */
byte arrived[RANKS];
byte submitted[RANKS * 2];
#define PLACE(rank, g) ((rank) * 2 + (g) % 2)

/* Pools. */
#define POOL(rank, b) ((rank) * BUFFERS + (b))
mtype pool_what[RANKS * BUFFERS];
byte pool_generation[RANKS * BUFFERS];

/* Run.outcome and Run.committed: generation, what, and where the result is
 * (rank NOBODY: of the large way). */
byte out_generation, out_rank, out_buffer;
mtype out_what = RUNNING;
byte kept_generation, kept_rank, kept_buffer;

byte consumed[RANKS];
bool ticket[GENERATIONS + 1];
byte moved[RANKS]; /* rendezvous: generation whose part this rank has done */

bool aborted;
byte left_count;
bool gone;         /* the last rank has left */
bool dead[RANKS];
bool executor_over;

mtype told[RANKS * (GENERATIONS + 1)]; /* zero: nothing yet */
#define TOLD(rank, g) told[(rank) * (GENERATIONS + 1) + (g)]

inline tell(g, what) {
  atomic {
    TOLD(me, g) = what;
    other = 0;
    do
    :: other < RANKS ->
       assert(!(TOLD(other, g) == OK && what == ERROR));
       assert(!(TOLD(other, g) == ERROR && what == OK));
       other++
    :: else -> break
    od;
    other = 0
  }
}

inline keep_commit() {
#ifdef NO_KEEP
  skip
#else
  atomic {
    if
    :: kept_generation < w_generation ->
       kept_generation = w_generation;
       kept_rank = w_rank;
       kept_buffer = w_buffer
    :: else
    fi
  }
#endif
}

inline load_outcome() {
  atomic {
    w_generation = out_generation;
    w_what = out_what;
    w_rank = out_rank;
    w_buffer = out_buffer
  }
}

/* Board::OutcomeWord: sets w_* to the decision on g. */
inline outcome_of(g) {
  load_outcome();
  if
  :: w_generation < g -> w_what = RUNNING
  :: w_generation == g ->
     if
     :: w_what == COMMITTED -> keep_commit()
     :: else
     fi
  :: else ->
     atomic {
       if
       :: kept_generation == g ->
          w_what = COMMITTED; w_rank = kept_rank; w_buffer = kept_buffer
       :: else -> w_what = SUPERSEDED
       fi;
       w_generation = g
     }
  fi
}

#ifdef NO_OVERRULE
#define OPEN(g, to) (out_generation < g)
#else
#define OPEN(g, to) \
  (out_generation < g || \
   (to == ABORTED && out_generation == g && out_what == REDUCING))
#endif

/* Board::Decide (rendezvous and aborts): the loop of load and CAS is one step,
 * for a failed CAS has no effect but another load. */
inline decide(g, to) {
  atomic {
    if
    :: OPEN(g, to) -> out_generation = g; out_what = to; out_rank = NOBODY
    :: else
    fi
  };
  outcome_of(g)
}

/* SmallPool::Unused of the buffer i of this rank. */
inline look_for_buffer() {
  buffer = NONE;
  i = 0;
  do
  :: i < BUFFERS && buffer == NONE ->
     if
     :: use[i] == 0 -> buffer = i
     :: else ->
        outcome_of(use[i]);
        if
#ifdef REUSE_UNDECIDED
        :: true -> buffer = i
#endif
        :: w_what == RUNNING || w_what == REDUCING -> skip
#ifndef REUSE_EARLY
        :: w_what == COMMITTED && w_rank == me && w_buffer == i ->
           all = true;
           other = 0;
           do
           :: other < RANKS ->
              if
              :: consumed[other] < use[i] -> all = false
              :: else
              fi;
              other++
           :: else -> break
           od;
           other = 0;
           if
           :: all -> buffer = i
           :: else
           fi
        :: (w_what == COMMITTED && !(w_rank == me && w_buffer == i)) ||
           w_what == ABORTED || w_what == FAILED || w_what == SUPERSEDED ->
           buffer = i
#else
        :: else -> buffer = i
#endif
        fi
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

inline deliver_small(g) {
  assert(pool_what[POOL(w_rank, w_buffer)] == RESULT);
  assert(pool_generation[POOL(w_rank, w_buffer)] == g);
  consumed[me] = g
}

/* Fail of generation g (the text is left out). */
inline fail(g) {
  atomic {
    if
    :: out_generation < g ->
       out_generation = g; out_what = FAILED; out_rank = NOBODY
    :: else
    fi
  }
}

inline look_around() {
  all = true;
  other = 0;
  do
  :: other < RANKS ->
     if
     :: arrived[other] < g -> all = false; break
     :: else -> other++
     fi
  :: else -> break
  od;
  other = 0
}

inline fail_if_left() {
#ifdef LEAVE
  if
  :: left_count > 0 ->
     if
     :: gone && arrived[RANKS - 1] < g -> fail(g)
     :: else
     fi
  :: else
  fi
#else
  skip
#endif
}

/* The last arriver's part; done: the operation has ended here. */
inline set_going() {
  i = 0;
  do
  :: i < RANKS ->
     if
     :: submitted[PLACE(i, g)] == NONE -> all = false; break
     :: submitted[PLACE(i, g)] != NONE ->
        if
        :: submitted[PLACE(i, g)] == OWN && i != me -> others_turn = true
        :: else
        fi;
        i++
     fi
  :: else -> break
  od;
  i = 0;
  if
  :: !all -> ticket[g] = true
  :: all && others_turn -> skip
  :: all && !others_turn ->
#ifdef CLAIM_BY_STORE
     claimed = out_generation < g;
     if
     :: claimed -> out_generation = g; out_what = REDUCING
     :: else
     fi;
#else
     atomic {
       claimed = out_generation < g;
       if
       :: claimed -> out_generation = g; out_what = REDUCING
       :: else
       fi
     };
#endif
     if
     :: claimed ->
        i = 0;
        do
        :: i < RANKS ->
           other = submitted[PLACE(i, g)];
           if
           :: other == OWN
           :: else ->
              assert(aborted || pool_what[POOL(i, other)] == INPUT);
              assert(aborted || pool_generation[POOL(i, other)] == g)
           fi;
           i++
        :: else -> break
        od;
        i = 0;
        other = submitted[PLACE(HOLDER(me), g)];
        pool_what[POOL(HOLDER(me), other)] = RESULT;
        atomic {
          claimed = out_generation == g && out_what == REDUCING;
          if
          :: claimed ->
             out_what = COMMITTED; out_rank = HOLDER(me); out_buffer = other
          :: else
          fi
        };
        if
        :: claimed ->
           w_generation = g; w_rank = HOLDER(me); w_buffer = other;
           other = 0;
           keep_commit();
           deliver_small(g);
           tell(g, OK);
           done = true;
           ticket[g] = true
        :: else
        fi
     :: else
     fi;
     claimed = false; other = 0
  fi;
  others_turn = false
}

inline submit() {
  /* OthersArrived */
  all = true;
  other = 0;
  do
  :: other < RANKS ->
     if
     :: other != me && arrived[other] < g -> all = false; break
     :: else -> other++
     fi
  :: else -> break
  od;
  other = 0;
  if
  :: all -> buffer = OWN
  :: !all ->
     look_for_buffer();
     if
     :: true
     :: buffer = NONE /* prefers that all share the work */
     fi
  fi;
  if
  :: buffer != NONE && buffer != OWN ->
     use[buffer] = g;
     atomic {
       pool_what[POOL(me, buffer)] = INPUT;
       pool_generation[POOL(me, buffer)] = g
     }
  :: else
  fi;
#ifdef RANK_LOOKS_FIRST
  fail_if_left();
#endif
  submitted[PLACE(me, g)] = buffer;
  arrived[me] = g;
  outcome_of(g);
  if
  :: w_what == RUNNING ->
     look_around();
     if
     :: all -> set_going()
     :: else ->
#ifndef RANK_LOOKS_FIRST
        fail_if_left()
#else
        skip
#endif
     fi
  :: else
  fi
}

/* Rendezvous: all ranks do their parts, then the first one commits. */
#define ALL_MOVED (moved[0] >= g && moved[1] >= g && moved[RANKS - 1] >= g)

/* The progress engine: waits until there is something to do for g. */
inline finish() {
  do
  :: !done && ticket[g] && moved[me] < g ->
     outcome_of(g);
     if
     :: w_what == COMMITTED && w_rank != NOBODY ->
        deliver_small(g); tell(g, OK); done = true
     :: else -> moved[me] = g
     fi
  :: !done && moved[me] == g && ALL_MOVED ->
     decide(g, COMMITTED);
     consumed[me] = g;
     if
     :: w_what == COMMITTED -> tell(g, OK)
     :: else -> assert(aborted); tell(g, ERROR)
     fi;
     done = true
  /* HandleFailures */
  :: !done && moved[me] < g &&
     (out_generation == g && out_what == FAILED ||
      out_generation > g && kept_generation != g) ->
     outcome_of(g);
     if
     :: w_what == FAILED || w_what == SUPERSEDED ->
        tell(g, ERROR); done = true
     :: else
     fi
  /* HandleAbort */
  :: !done && aborted ->
     decide(g, ABORTED);
     if
     :: w_what == COMMITTED && w_rank != NOBODY ->
#ifdef TICKET_ONLY
        ticket[g];
#endif
        deliver_small(g); tell(g, OK)
     :: w_what == COMMITTED && w_rank == NOBODY ->
        assert(moved[me] == g); tell(g, OK)
     :: else -> consumed[me] = g; tell(g, ERROR)
     fi;
     done = true
  :: done -> break
  od
}

proctype Rank(byte me) {
  byte g = 1, buffer, i, other;
  byte w_generation, w_rank, w_buffer;
  mtype w_what;
  byte use[BUFFERS]; /* generation in the buffer; 0: free */
  bool all, claimed, done, others_turn;
  {
    do
    :: g <= GENERATIONS ->
       if
       :: aborted -> break
#ifdef LEAVE
       :: me == RANKS - 1 -> gone = true; break
#endif
       :: !aborted -> /* what comes after this look is in the race */
          done = false;
          submit();
          finish();
          g++
       fi
    :: else -> break
    od
  }
#ifdef DEATH
  unless { dead[me] }
#endif
}

#ifdef DEATH
/* At most one rank dies; the abort may also come without a death. */
proctype Executor() {
  byte victim;
  if
  :: select(victim : 0 .. RANKS - 1); dead[victim] = true; aborted = true
  :: aborted = true
  :: true /* neither */
  fi;
  executor_over = true
}
#endif

#ifdef LEAVE
proctype Executor() {
  byte i, most;
end:
  gone ->
#ifndef LOOK_THEN_COUNT
  left_count = 1;
#endif
  i = 0;
  do
  :: i < RANKS ->
     if
     :: arrived[i] > most -> most = arrived[i]
     :: else
     fi;
     i++
  :: else -> break
  od;
  if
  :: arrived[RANKS - 1] < most -> fail(most)
  :: else
  fi;
#ifdef LOOK_THEN_COUNT
  left_count = 1;
#endif
  executor_over = true
}
#endif

init {
  byte i;
  atomic {
    do
    :: i < RANKS * 2 -> submitted[i] = NONE; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < RANKS * BUFFERS -> pool_what[i] = FREE; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < RANKS -> run Rank(i); i++
    :: else -> break
    od;
#ifdef DEATH
    run Executor()
#endif
#ifdef LEAVE
    run Executor()
#endif
  }
}
