/* Slots that are reused for other names (docs/board.md, section 12).
 *
 * Ranks submit the names of one program, several at a time, with fewer slots
 * than names. A rank asks the executor for a name's slot, arrives there, and
 * delivers when all have arrived and its ring place is free: all ranks have
 * delivered the previous operation there, as its generation shows. The executor
 * takes slots back, by messages that keep their order, and gives them to waiting
 * names. Submitting, a reply and a recall are each one step of a rank (its
 * mutex).
 *
 * Claims: all ranks that arrive at a generation of a slot do so under one name;
 * every operation ends.
 *
 * Mutants: FREE_BY_FIRST, GIVE_BUSY, KEEP_NUMBER, NO_HOLDER, FROM_ZERO.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef NAMES
#define NAMES 2
#endif
#ifndef STEPS
#define STEPS 3
#endif
#define NOBODY NAMES
#define AT(slot, rank) ((slot) * RANKS + (rank))
#define OTHER (1 - me)

mtype = { request, returned, kept, reply, recall };
chan up[RANKS] = [6] of { mtype, byte };         /* a name; a slot */
chan down[RANKS] = [6] of { mtype, byte, byte }; /* a name, its slot; a slot */

byte program[STEPS];
/* The board. */
byte arrival[SLOTS * RANKS];
byte consumed[SLOTS * RANKS];
byte ticket_slot[STEPS];
byte ticket_generation[STEPS];
byte tickets;
/* For the claims only. */
byte submitted[SLOTS * RANKS]; /* the name of the last arrival */
byte over;                     /* ranks whose operations all ended */

/* The executor's. */
byte slot_of[NAMES]; /* + 1; 0: none */
byte owner[SLOTS];
byte base[SLOTS];
byte holders[SLOTS];
byte asked[SLOTS];
bool recalled[SLOTS];
bool waits[NAMES * RANKS];

inline arrive(n) {
  s = known[n] - 1;
  generation[n]++;
  submitted[AT(s, me)] = n;
  arrival[AT(s, me)] = generation[n];
  pending[n] = 2;
  if
  :: arrival[AT(s, OTHER)] == generation[n] ->
     assert(submitted[AT(s, OTHER)] == n);
     ticket_slot[tickets] = s;
     ticket_generation[tickets] = generation[n];
     tickets++
  :: else
  fi
}

#define PLACE_IS_FREE (place_generation == 0 || consumed[AT(place_slot, OTHER)] >= place_generation)

inline deliver(n) {
  s = known[n] - 1;
  consumed[AT(s, me)] = generation[n];
  place_slot = s;
  place_generation = generation[n];
  pending[n] = 0;
  cursor++
}

/* In the order of tickets. */
#define CAN_DELIVER(n)                                                   \
  (cursor < tickets && pending[n] == 2 &&                                \
   known[n] == ticket_slot[cursor] + 1 &&                                \
   generation[n] == ticket_generation[cursor] && PLACE_IS_FREE)

#if NAMES > 2
#define NOTHING_PENDING (pending[0] + pending[1] + pending[2] == 0)
#else
#define NOTHING_PENDING (pending[0] + pending[1] == 0)
#endif

inline give_back(n) {
  if
#ifdef GIVE_BUSY
  :: up[me]!returned(s)
     known[n] = 0
#else
  :: pending[n] > 0 -> up[me]!kept(s)
  :: pending[n] == 0 ->
#ifndef KEEP_NUMBER
     known[n] = 0;
#endif
     up[me]!returned(s)
#endif
  fi
}

proctype rank(byte me) {
  byte known[NAMES]; /* slot + 1; 0: none */
  byte generation[NAMES];
  byte pending[NAMES]; /* 1: has no slot; 2: has arrived */
  byte step, n, s, cursor, place_slot, place_generation;
  bool found;
end:
  do
  :: atomic {
       step < STEPS && pending[program[step]] == 0 ->
       n = program[step];
       step++;
       pending[n] = 1;
       if
       :: known[n] > 0 -> arrive(n)
       :: else -> up[me]!request(n)
       fi;
       n = 0; s = 0
     }
  :: atomic { CAN_DELIVER(0) -> deliver(0); s = 0 }
  :: atomic { CAN_DELIVER(1) -> deliver(1); s = 0 }
#if NAMES > 2
  :: atomic { CAN_DELIVER(2) -> deliver(2); s = 0 }
#endif
  :: atomic {
       down[me]?reply(n, s) ->
       known[n] = s + 1;
       generation[n] = arrival[AT(s, me)];
       if
       :: pending[n] == 1 -> arrive(n)
       :: else
       fi;
       n = 0; s = 0
     }
  :: atomic {
       down[me]?recall(s, _) ->
       found = false;
       n = 0;
       do
       :: n < NAMES && known[n] == s + 1 -> found = true; break
       :: n < NAMES && known[n] != s + 1 -> n++
       :: n == NAMES -> break
       od;
       if
       :: found -> give_back(n)
       :: !found -> up[me]!returned(s)
       fi;
       n = 0; s = 0; found = false
     }
  :: atomic {
       step == STEPS && NOTHING_PENDING ->
       step++;
       over++
     }
  od
}

inline hand(r, n) {
#ifdef NO_HOLDER
  if
  :: !recalled[slot_of[n] - 1] -> holders[slot_of[n] - 1] = holders[slot_of[n] - 1] | (1 << r)
  :: else
  fi;
#else
  holders[slot_of[n] - 1] = holders[slot_of[n] - 1] | (1 << r);
  recalled[slot_of[n] - 1] = false;
#endif
  down[r]!reply(n, slot_of[n] - 1)
}

/* The name gets the slot; all that wait for it are told. */
inline allot(s, n) {
  owner[s] = n;
  slot_of[n] = s + 1;
#ifdef FROM_ZERO
  base[s] = 0;
#endif
  i = 0;
  do
  :: i < RANKS ->
     arrival[AT(s, i)] = base[s];
     consumed[AT(s, i)] = base[s];
     i++
  :: else -> break
  od;
  i = 0;
  do
  :: i < RANKS && waits[n * RANKS + i] -> waits[n * RANKS + i] = false; hand(i, n); i++
  :: i < RANKS && !waits[n * RANKS + i] -> i++
  :: i == RANKS -> break
  od;
  i = 0
}

inline free(s) {
  slot_of[owner[s]] = 0;
  owner[s] = NOBODY;
  recalled[s] = false;
  asked[s] = 0;
  holders[s] = 0;
  /* Beyond all generations that any word carries. */
  base[s] = (arrival[AT(s, 0)] > arrival[AT(s, 1)] -> arrival[AT(s, 0)] : arrival[AT(s, 1)]) + 1
}

inline answered(s, r) {
  asked[s] = asked[s] & ~(1 << r);
  if
#ifdef FREE_BY_FIRST
  :: recalled[s] -> free(s)
#else
  :: recalled[s] && holders[s] == 0 -> free(s)
#endif
  :: else
  fi
}

#define IDLE(s)                                    \
  (arrival[AT(s, 0)] == arrival[AT(s, 1)] &&       \
   consumed[AT(s, 0)] == arrival[AT(s, 0)] &&      \
   consumed[AT(s, 1)] == arrival[AT(s, 1)])

inline recall_from(s) {
  recalled[s] = true;
  asked[s] = holders[s];
  i = 0;
  do
  :: i < RANKS && (holders[s] & (1 << i)) -> down[i]!recall(s, 0); i++
  :: i < RANKS && !(holders[s] & (1 << i)) -> i++
  :: i == RANKS -> break
  od;
  i = 0
}

#define WAITS(n) (waits[(n) * RANKS] || waits[(n) * RANKS + 1])
#if NAMES > 2
#define SOMEBODY_WAITS (WAITS(0) || WAITS(1) || WAITS(2))
#else
#define SOMEBODY_WAITS (WAITS(0) || WAITS(1))
#endif
#define MAY_RECALL(s) \
  (SOMEBODY_WAITS && owner[s] != NOBODY && asked[s] == 0 && !recalled[s] && holders[s] != 0 && IDLE(s))

#define FROM(r)                                                     \
  :: atomic {                                                       \
       up[r]?request(n) ->                                          \
       if                                                           \
       :: slot_of[n] > 0 -> hand(r, n)                              \
       :: else -> waits[n * RANKS + r] = true                       \
       fi;                                                          \
       n = 0                                                        \
     }                                                              \
  :: atomic { up[r]?kept(s) -> recalled[s] = false; answered(s, r); s = 0 } \
  :: atomic { up[r]?returned(s) -> holders[s] = holders[s] & ~(1 << r); answered(s, r); s = 0 }

#define FREE_SLOT(s, n) \
  :: atomic { owner[s] == NOBODY && WAITS(n) -> allot(s, n) }

active proctype executor() {
  byte n, s, i;
  /* The program, one of all; and all slots are free. */
  d_step { i = 0; do :: i < SLOTS -> owner[i] = NOBODY; i++ :: else -> break od }
  i = 0;
  do
  :: i < STEPS -> program[i] = 0; i++
  :: i < STEPS -> program[i] = 1; i++
#if NAMES > 2
  :: i < STEPS -> program[i] = 2; i++
#endif
  :: i == STEPS -> break
  od;
  i = 0;
  atomic { run rank(0); run rank(1); run monitor() }
end:
  do
  FROM(0)
  FROM(1)
  FREE_SLOT(0, 0)
  FREE_SLOT(0, 1)
  :: atomic { MAY_RECALL(0) -> recall_from(0) }
#if NAMES > 2
  FREE_SLOT(0, 2)
#endif
#if SLOTS > 1
  FREE_SLOT(1, 0)
  FREE_SLOT(1, 1)
  FREE_SLOT(1, 2)
  :: atomic { MAY_RECALL(1) -> recall_from(1) }
#endif
  od
}

/* When nothing can move any more, all is done. */
proctype monitor() {
  timeout -> assert(over == RANKS)
}
