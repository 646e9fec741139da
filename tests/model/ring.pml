/* The ticket ring when some ranks run far ahead (docs/board.md, section 5).
 *
 * Ranks with a process set of their own place and read tickets at any speed.
 * Rank C has one operation with the first of them and may read its tickets
 * late. Before its arrival C passes the existing tickets and publishes how far it
 * has read; a placer that fills the first cell of a stretch checks that all
 * readers are within half a ring, and tries again later if not.
 *
 * Claims: the ticket that C needs is not overwritten before C has read it; C
 * finds it; all ranks end.
 *
 * Mutants: NO_LOOK, PUBLISH_LATE, LOOK_AT_LAST (cell of the ring only).
 */
#ifndef PLACERS
#define PLACERS 2
#endif
#ifndef TICKETS
#define TICKETS 4 /* of each placer */
#endif
#define CELLS 8
#define HALF 4
#define STRETCH 2

#define C PLACERS /* the late reader's number */
#define SHARED 99 /* whose ticket: C's and placer 0's; else its placer's */

#define LAP(position) ((position) / CELLS + 1)
#define CELL(position) ((position) % CELLS)

byte cell_lap[CELLS];
byte cell_owner[CELLS];
byte reads[PLACERS + 1]; /* tickets_read: next position + 1; 0: nothing */
bool arrived;            /* C, at the shared operation */
bool found;              /* C has read its ticket */
byte over;

inline may_place() {
  may = true;
#ifndef NO_LOOK
#ifdef LOOK_AT_LAST
  if
  :: position % CELLS == CELLS - 1 ->
#else
  if
  :: position % STRETCH == 0 ->
#endif
     other = 0;
     do
     :: other <= C ->
        if
        :: reads[other] != 0 && position >= reads[other] + HALF -> may = false
        :: else
        fi;
        other++
     :: else -> break
     od;
     other = 0
  :: else
  fi
#endif
}

/* Board::PlaceTicket from the cursor on; tried again while it is held. The
 * placer reads what it passes. */
inline place(whose) {
  do
  :: atomic {
       position = cursor;
       do
       :: cell_lap[CELL(position)] >= LAP(position) -> position++
       :: else -> break
       od;
       cursor = position
     }
     may_place();
     if
     :: may ->
        /* compare and swap */
        atomic {
          if
          :: cell_lap[CELL(position)] < LAP(position) ->
             assert(cell_owner[CELL(position)] != SHARED ||
                    cell_lap[CELL(position)] == 0 || found);
             cell_lap[CELL(position)] = LAP(position);
             cell_owner[CELL(position)] = whose;
             cursor = position + 1;
             break
          :: else
          fi
        }
     :: else -> /* held: its own tickets are all read */
        atomic { reads[me] = (reads[me] == 0 -> 0 : cursor + 1) }
     fi
  od;
  may = false
}

proctype Placer(byte me) {
  byte cursor, position, other, left = TICKETS;
  bool may, shared = (me == 0);

  do
  :: left > 0 ->
     left--;
     atomic { reads[me] = cursor + 1 };
     place(me);
     reads[me] = 0
  :: shared && arrived ->
     shared = false;
     place(SHARED)
  :: left == 0 && !shared -> break
  od;
  over++
}

proctype Late() {
  byte cursor;
  /* SkipTickets */
  do
  :: atomic { cell_lap[CELL(cursor)] >= LAP(cursor) ->
       cursor = (cell_lap[CELL(cursor)] - 1) * CELLS + CELL(cursor) + 1 }
  :: break
  od;
#ifdef PUBLISH_LATE
  arrived = true;
  reads[C] = cursor + 1;
#else
  reads[C] = cursor + 1;
  arrived = true;
#endif
  do
  :: atomic {
       cell_lap[CELL(cursor)] >= LAP(cursor) ->
       /* moved on, if it was lapped: then it had no part in what stood there */
       cursor = (cell_lap[CELL(cursor)] - 1) * CELLS + CELL(cursor);
       if
       :: cell_owner[CELL(cursor)] == SHARED -> found = true; break
       :: else -> cursor++
       fi
     }
  :: atomic { reads[C] != cursor + 1 -> reads[C] = cursor + 1 }
  od;
  reads[C] = 0;
  over++
}

init {
  byte i;
  atomic {
    do
    :: i < PLACERS -> run Placer(i); i++
    :: else -> break
    od;
    run Late()
  };
  over == PLACERS + 1;
  assert(found)
}
