/* Rendezvous reductions within a node (docs/board.md, sections 6 to 8): rings,
 * progress words, the order of runs, the commit, aborts and deaths.
 *
 * Each rank's progress engine has all runs in progress and does any possible step, one at
 * a time; copying and publishing are separate steps. A place of a ring holds one chunk, in
 * slices: slice s of rank r's place is r's part of the slice that s sums; the sum
 * overwrites the part of the next rank (HOLDER). Memory holds marks with the run and
 * chunk, and whether it is a part or a sum.
 *
 * A condition over several ranks' words is one step here. The code loads them
 * one after the other; they only grow, so the condition still holds at the end.
 *
 * -DDEATH: a rank may die at any step; the executor aborts then or at any time.
 *
 * Claims: a rank that sums or delivers reads data of the right run and chunk; no two
 * ranks return different outcomes of a run; every run ends, also those committed
 * before the abort.
 *
 * Mutants: PLACE_EARLY, FREE_BY_SELF, PUBLISH_FIRST, ANY_ORDER, COMMIT_EARLY,
 * NO_COMMIT, DROP_COMMITTED.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef RUNS
#define RUNS 2
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#define DEPTH 2
#define LONG_DONE 100
#define NO_RUN 99

/* A slice of a place. */
#define HELD(rank, place, slice) \
  ring[((rank) * DEPTH + (place)) * RANKS + (slice)]
#define PART(op, chunk) (1 + (op) * CHUNKS + (chunk))
#define SUM(op, chunk) (50 + PART(op, chunk))
#define HOLDER(rank) (((rank) + 1) % RANKS)
byte ring[RANKS * DEPTH * RANKS];

/* Progress words. */
#define OF(word, op, rank) word[(op) * RANKS + (rank)]
byte base[RUNS * RANKS];
byte staged[RUNS * RANKS];
byte reduced[RUNS * RANKS];
byte consumed[RUNS * RANKS];
#define PLACE_OF(op, chunk, rank) ((OF(base, op, rank) + (chunk)) % DEPTH)

#if RANKS == 2
#define ALL(word, op, n) \
  (OF(word, op, 0) > (n) && OF(word, op, 1) > (n))
#else
#define ALL(word, op, n)                               \
  (OF(word, op, 0) > (n) && OF(word, op, 1) > (n) && \
   OF(word, op, 2) > (n))
#endif

mtype = { RUNNING, COMMITTED, ABORTED };
mtype = { OK, ERROR };
mtype outcome[RUNS] = RUNNING;
mtype told[RUNS * RANKS];
bool aborted;
bool dead[RANKS];

inline tell(op, what) {
  atomic {
    OF(told, op, me) = what;
    i = 0;
    do
    :: i < RANKS ->
       assert(!(OF(told, op, i) == OK && what == ERROR));
       assert(!(OF(told, op, i) == ERROR && what == OK));
       i++
    :: else -> break
    od;
    i = 0;
    left--
  }
}

inline decide(op, to) {
  atomic {
    if
    :: outcome[op] == RUNNING -> outcome[op] = to
    :: else
    fi;
    decided = outcome[op]
  }
}

/* The place that comes next is free: what lay there is consumed by all. */
#define WHO place_run[next_place]
#ifdef PLACE_EARLY
#define PLACE_IS_FREE \
  (WHO == NO_RUN || ALL(consumed, WHO, place_chunk[next_place] - 1))
#elif defined(FREE_BY_SELF)
#define PLACE_IS_FREE \
  (WHO == NO_RUN || OF(consumed, WHO, me) > place_chunk[next_place])
#else
#define PLACE_IS_FREE \
  (WHO == NO_RUN || ALL(consumed, WHO, place_chunk[next_place]))
#endif

#ifdef ANY_ORDER
#define MAY_STAGE(op) true
#else
#define MAY_STAGE(op) ((op) == 0 || my_staged[0] == CHUNKS)
#endif

#define ACTIVE(op) (OF(told, op, me) == 0)
#define CAN_STAGE(op)                                           \
  (ACTIVE(op) && my_staged[op] < CHUNKS && MAY_STAGE(op) && \
   PLACE_IS_FREE)
#define CAN_REDUCE(op)                               \
  (ACTIVE(op) && my_reduced[op] < my_staged[op] && \
   ALL(staged, op, my_reduced[op]))
#define CAN_CONSUME(op)                                 \
  (ACTIVE(op) && my_consumed[op] < my_reduced[op] && \
   ALL(reduced, op, my_consumed[op]) &&               \
   !(my_consumed[op] + 1 == CHUNKS && outcome[op] == ABORTED))
/* Runs are retired from the front. */
#define CAN_RETIRE(op)                           \
  (ACTIVE(op) && my_consumed[op] == CHUNKS && \
   ((op) == 0 || !ACTIVE(0)))

inline stage(op) {
  atomic {
    chunk = my_staged[op];
    if
    :: chunk == 0 -> OF(base, op, me) = next_place
    :: else
    fi;
    place_run[next_place] = op;
    place_chunk[next_place] = chunk;
    place = next_place;
    next_place = (next_place + 1) % DEPTH
  }
#ifdef PUBLISH_FIRST
  OF(staged, op, me) = chunk + 1;
#endif
  atomic {
    i = 0;
    do
    :: i < RANKS ->
       if
       :: i != me -> HELD(me, place, i) = PART(op, chunk)
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
  atomic {
    my_staged[op] = chunk + 1;
    OF(staged, op, me) = chunk + 1;
    chunk = 0; place = 0
  }
}

inline reduce(op) {
  chunk = my_reduced[op];
  i = 0;
  do
  :: i < RANKS ->
     if
     :: i != me ->
        assert(HELD(i, PLACE_OF(op, chunk, i), me) == PART(op, chunk))
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0;
  HELD(HOLDER(me), PLACE_OF(op, chunk, HOLDER(me)), me) = SUM(op, chunk);
  atomic {
    my_reduced[op] = chunk + 1;
    OF(reduced, op, me) = chunk + 1;
    chunk = 0
  }
}

#ifdef COMMIT_EARLY
#define LAST 0
#else
#define LAST (CHUNKS - 1)
#endif

inline consume(op) {
  chunk = my_consumed[op];
  decided = COMMITTED;
#ifndef NO_COMMIT
  if
  :: chunk == LAST -> decide(op, COMMITTED)
  :: else
  fi;
#endif
  if
  :: decided == COMMITTED ->
     i = 0;
     do
     :: i < RANKS ->
        if
        :: i != me ->
           assert(HELD(HOLDER(i), PLACE_OF(op, chunk, HOLDER(i)), i) ==
                  SUM(op, chunk))
        :: else
        fi;
        i++
     :: else -> break
     od;
     i = 0;
     atomic {
       my_consumed[op] = chunk + 1;
       OF(consumed, op, me) = chunk + 1
     }
  :: else
  fi;
  chunk = 0
}

inline retire(op, what) {
  OF(consumed, op, me) = LONG_DONE;
  tell(op, what)
}

inline end_aborted(op) {
  decide(op, ABORTED);
  if
#ifndef DROP_COMMITTED
  :: decided == COMMITTED -> seen_committed[op] = true
#endif
  :: decided == ABORTED -> retire(op, ERROR)
#ifdef DROP_COMMITTED
  :: else -> retire(op, ERROR)
#endif
  fi
}

proctype Rank(byte me) {
  byte my_staged[RUNS], my_reduced[RUNS], my_consumed[RUNS];
  byte place_run[DEPTH] = NO_RUN;
  byte place_chunk[DEPTH];
  byte next_place, place, chunk, i;
  byte left = RUNS;
  bool seen_committed[RUNS];
  mtype decided;
  {
    do
    :: CAN_STAGE(0) -> stage(0)
    :: CAN_REDUCE(0) -> reduce(0)
    :: CAN_CONSUME(0) -> consume(0)
    :: CAN_RETIRE(0) -> retire(0, OK)
#if RUNS > 1
    :: CAN_STAGE(1) -> stage(1)
    :: CAN_REDUCE(1) -> reduce(1)
    :: CAN_CONSUME(1) -> consume(1)
    :: CAN_RETIRE(1) -> retire(1, OK)
#endif
    :: aborted && ACTIVE(0) && !seen_committed[0] -> end_aborted(0)
#if RUNS > 1
    :: aborted && ACTIVE(1) && !seen_committed[1] -> end_aborted(1)
#endif
    :: left == 0 -> break
    od
  }
#ifdef DEATH
  unless { dead[me] }
#endif
}

#ifdef DEATH
proctype Executor() {
  byte victim;
  if
  :: select(victim : 0 .. RANKS - 1); dead[victim] = true; aborted = true
  :: aborted = true
  fi
}
#endif

init {
  byte r;
  atomic {
    do
    :: r < RANKS -> run Rank(r); r++
    :: else -> break
    od;
#ifdef DEATH
    run Executor()
#endif
  }
}
