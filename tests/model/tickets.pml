/* Arrival and tickets (docs/board.md, sections 4 and 5).
 *
 * Ranks submit generations of several names in any order, small steps at a
 * time: store the own arrival, load the others'; each rank that sees that all have
 * arrived places the ticket by Board::PlaceTicket. Each rank's progress engine reads tickets at
 * its cursor. A rank may be at any point while others run ahead. A name's
 * operation ends for a rank when its engine has taken the ticket, which is
 * sooner than in the code, so more can happen here.
 *
 * The table mutex keeps a rank's arrivals and its reading of tickets apart
 * (client/session/board_communicator), so a rank is one process. But Finish() arrives at the next
 * operation before the cursor has passed the ticket that ended: a start may lag by one.
 *
 * Claims: tickets have no hole; each generation has exactly one; no
 * reader is lapped; all generations of all names end.
 *
 * Mutants: LOOK_FIRST, STORE_TICKET, START_AHEAD, NO_GENERATION, SMALL_RING.
 */
#ifndef RANKS
#define RANKS 2
#endif
#define SLOTS 2
#ifndef GENERATIONS
#define GENERATIONS 2
#endif
#ifdef SMALL_RING
#define CELLS 1
#else
#define CELLS 4 /* at least 2 x SLOTS */
#endif

#define AT(slot, rank) arrival[(slot) * RANKS + (rank)]

byte arrival[SLOTS * RANKS];
/* A cell: lap, slot, generation, written at once. */
byte cell_lap[CELLS];
byte cell_slot[CELLS];
byte cell_generation[CELLS];

/* For the claims only. */
byte tickets;                            /* placed so far */
bool placed[SLOTS * (GENERATIONS + 1)];  /* by slot and generation */
byte over;                               /* ranks whose operations all ended */

#define LAP(position) ((position) / CELLS + 1)
#define CELL(position) ((position) % CELLS)

inline note_placed() {
  assert(position == tickets); /* neither a hole nor a second ticket */
  assert(!placed[slot * (GENERATIONS + 1) + generation]);
  placed[slot * (GENERATIONS + 1) + generation] = true;
  tickets++
}

inline write_cell() {
  cell_lap[CELL(position)] = LAP(position);
  cell_slot[CELL(position)] = slot;
  cell_generation[CELL(position)] = generation
}

#ifdef NO_GENERATION
#define OWN (seen_lap == LAP(position) && seen_slot == slot)
#else
#define OWN                                          \
  (seen_lap == LAP(position) && seen_slot == slot && \
   seen_generation == generation)
#endif

inline load_cell() {
  atomic {
    seen_lap = cell_lap[CELL(position)];
    seen_slot = cell_slot[CELL(position)];
    seen_generation = cell_generation[CELL(position)]
  }
}

inline place_ticket() {
  position = start;
  do
  :: load_cell();
     if
     :: seen_lap < LAP(position) ->
#ifdef STORE_TICKET
        atomic { write_cell(); note_placed() };
        break
#else
        /* compare and swap; a failed one loads again, at this position */
        atomic {
          if
          :: cell_lap[CELL(position)] == seen_lap ->
             write_cell();
             note_placed();
             break
          :: else
          fi
        }
#endif
     :: else ->
        if
        :: OWN -> break
        :: else -> position++
        fi
     fi
  od;
  position = 0; seen_lap = 0; seen_slot = 0; seen_generation = 0
}

inline look_around() {
  complete = true;
  other = 0;
  do
  :: other < RANKS ->
     if
     :: other != me && AT(slot, other) < generation -> complete = false; break
     :: else -> other++
     fi
  :: else -> break
  od;
  other = 0
}

inline announce() {
#ifdef LOOK_FIRST
  look_around();
  AT(slot, me) = generation;
#else
  AT(slot, me) = generation;
  look_around();
#endif
  if
  :: complete -> place_ticket()
  :: else
  fi;
  complete = false
}

#define CAN_SUBMIT(s) (!waiting[s] && ended[s] < GENERATIONS)

proctype Rank(byte me) {
  byte cursor, start, position, slot, generation, other;
  byte seen_lap, seen_slot, seen_generation;
  byte ended[SLOTS];   /* the last generation that ended, by slot */
  bool waiting[SLOTS];
  byte left = SLOTS * GENERATIONS;
  bool complete;

  do
  /* Submit the next generation of some name. */
  :: atomic {
       CAN_SUBMIT(0) || CAN_SUBMIT(1) ->
       if
       :: CAN_SUBMIT(0) -> slot = 0
       :: CAN_SUBMIT(1) -> slot = 1
       fi;
       generation = ended[slot] + 1;
       waiting[slot] = true;
       start = cursor;
       if
       :: cursor > 0 -> start = cursor - 1
       :: true
       fi
#ifdef START_AHEAD
       ;
       start = cursor + 1
#endif
     }
     announce();
     slot = 0; generation = 0; start = 0

  /* Take the ticket at the cursor. */
  :: atomic {
       cell_lap[CELL(cursor)] >= LAP(cursor) ->
       assert(cell_lap[CELL(cursor)] == LAP(cursor)); /* not lapped */
       slot = cell_slot[CELL(cursor)];
       assert(waiting[slot]);
       assert(cell_generation[CELL(cursor)] == ended[slot] + 1);
       waiting[slot] = false;
       ended[slot]++;
       left--;
       cursor++;
       slot = 0
     }

  :: atomic { left == 0 -> over++; break }
  od
}

init {
  byte i;
  atomic {
    do
    :: i < RANKS -> run Rank(i); i++
    :: else -> break
    od
  };
  over == RANKS;
  assert(tickets == SLOTS * GENERATIONS)
}
