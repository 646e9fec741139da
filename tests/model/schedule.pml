/* The frozen tier: how nodes agree without the coordinator (docs/schedule.md;
 * worker/core/operations/schedule.h).
 *
 * Each node is ready for one position after the other, until it refuses; then
 * it is ready for no more. Messages of two nodes keep their order, and nothing
 * else does. A node handles one event at a time.
 *
 * Without FAN each node tells each other one, and decides from what all others
 * have said. With FAN=f the nodes form a tree, in which the parent of node i is
 * (i - 1) / f; a node decides from what its parent says, the root from what its
 * children say.
 *
 * Claims: a node executes a position only if all nodes were ready for it; when
 * all have ended, all have executed the same positions; and all end.
 *
 * Mutants: READY_ALONE (of a tree: a node does not wait for those below it),
 * REFUSED_ALONE (likewise), OWN_POSITION (a refusal has the node's own
 * position, not the least), ONE_READY (a node decides as soon as one that
 * decides has said so), LATE_READY (a node is ready for more after its refusal),
 * NOT_TOLD (a refusal is not passed on, and no other node refuses by itself).
 */
#ifndef NODES
#define NODES 3
#endif
#ifndef POSITIONS
#define POSITIONS 2
#endif
#ifndef FAN
#define FAN 0
#endif
#define NONE 255

mtype = { READY, REFUSAL, LEAVING };
chan wire[NODES * NODES] = [POSITIONS + 3] of { mtype, byte };
#define WIRE(from, to) wire[(from) * NODES + (to)]

byte next[NODES];      /* ready for all positions below */
bool refused[NODES];
byte executed[NODES];  /* all positions below */
byte ended;

/* What `of` has said to `at`. */
byte ready_of[NODES * NODES];    /* for all positions below */
byte refusal_of[NODES * NODES];  /* from which on; NONE: has not refused */
#define AT(at, of) ((at) * NODES + (of))

/* CHILD(a, t): t is a child of a. ABOVE(a, t): a tells t what it has to say, and
 * decides from what t says. */
#if FAN == 0
#define CHILD(a, t) false
#define ABOVE(a, t) ((t) != (a))
#else
#define CHILD(a, t) ((t) > 0 && ((t) - 1) / FAN == (a))
#define ABOVE(a, t) ((a) == 0 && CHILD(a, t) || CHILD(t, a))
#endif

inline Tell(who, kind, value) {
  t = 0;
  do
  :: t < NODES && (who) -> WIRE(a, t)!kind(value); t++
  :: t < NODES && !(who) -> t++
  :: t == NODES -> break
  od
}

/* In a tree: what is true of the node and of all below it. */
inline TellAbove() {
  least = next[a];
  from = next[a];
  all = refused[a];
  t = 0;
  do
  :: t < NODES ->
     if
     :: CHILD(a, t) ->
#ifndef READY_ALONE
        if
        :: ready_of[AT(a, t)] < least -> least = ready_of[AT(a, t)]
        :: else
        fi;
#endif
#ifndef REFUSED_ALONE
        all = all && refusal_of[AT(a, t)] != NONE;
#endif
#ifndef OWN_POSITION
        if
        :: refusal_of[AT(a, t)] < from -> from = refusal_of[AT(a, t)]
        :: else
        fi
#endif
     :: else
     fi;
     t++
  :: else -> break
  od;
  if
  :: least > told -> told = least; Tell(ABOVE(a, t), READY, least)
  :: else
  fi;
  if
  :: all && !told_refusal -> told_refusal = true; Tell(ABOVE(a, t), REFUSAL, from)
  :: else
  fi
}

inline Refuse() {
  if
  :: !refused[a] ->
     refused[a] = true;
#if FAN == 0
     Tell(ABOVE(a, t), REFUSAL, next[a])
#else
#ifndef NOT_TOLD
     Tell(ABOVE(a, t) || CHILD(a, t), LEAVING, 0);
#endif
     TellAbove()
#endif
  :: else
  fi
}

inline Receive(sender) {
  b = sender;
  WIRE(b, a)?kind(value);
  if
  :: kind == READY -> ready_of[AT(a, b)] = value
  :: kind == REFUSAL -> refusal_of[AT(a, b)] = value
  :: kind == LEAVING
  fi;
  if
#ifdef NOT_TOLD
  :: kind == REFUSAL && CHILD(b, a) -> Refuse()
#else
  :: kind != READY -> Refuse()
#endif
  :: else
  fi;
#if FAN != 0
  if
  :: CHILD(b, a) && kind != LEAVING -> Tell(CHILD(a, t), kind, value)
  :: else
  fi;
  TellAbove()
#endif
}

/* Whether the node's next position is to be executed, or dropped. */
inline Decide() {
  ready = 1;
  dropped = 0;
  said = 0;
  finished = 1;
  t = 0;
  do
  :: t < NODES ->
     if
     :: ABOVE(a, t) ->
        if
        :: ready_of[AT(a, t)] > executed[a] -> said = 1
        :: else ->
           ready = 0;
           dropped = dropped || refusal_of[AT(a, t)] <= executed[a]
        fi;
        finished = finished && refusal_of[AT(a, t)] != NONE
     :: else
     fi;
     t++
  :: else -> break
  od;
#ifdef ONE_READY
  ready = said
#endif
}

inline After() {
  Decide();
  do
  :: executed[a] < next[a] && ready ->
     t = 0;
     do
     :: t < NODES -> assert(next[t] > executed[a]); t++
     :: else -> break
     od;
     executed[a]++;
     Decide()
  :: else -> break
  od
}

#define HAS(b) (a != (b) && nempty(WIRE(b, a)))

proctype Node(byte a) {
  byte t, b, value, least, from, told;
  bool all, told_refusal, ready, dropped, said, finished;
  mtype kind;
  do
  :: atomic {
#ifdef LATE_READY
       next[a] < POSITIONS ->
#else
       !refused[a] && next[a] < POSITIONS ->
#endif
       next[a]++;
#if FAN == 0
       Tell(ABOVE(a, t), READY, next[a]);
#else
       TellAbove();
#endif
       After()
     }
#ifdef NOT_TOLD
  :: atomic { a == 0 && !refused[a] -> Refuse(); After() }
#else
  :: atomic { !refused[a] -> Refuse(); After() }
#endif
  :: atomic { HAS(0) -> Receive(0); After() }
  :: atomic { HAS(1) -> Receive(1); After() }
  :: atomic { HAS(2) -> Receive(2); After() }
#if NODES > 3
  :: atomic { HAS(3) -> Receive(3); After() }
#endif
  :: atomic {
       refused[a] && finished && (executed[a] == next[a] || dropped) -> break
     }
  od;
  ended++
}

init {
  byte i = 0;
  atomic {
    do
    :: i < NODES * NODES -> refusal_of[i] = NONE; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < NODES -> run Node(i); i++
    :: else -> break
    od
  }
  ended == NODES;
  i = 1;
  do
  :: i < NODES -> assert(executed[i] == executed[0]); i++
  :: else -> break
  od
}
