/* Sleeping and waking (docs/board.md, section 9): the threads of one rank, and
 * peers that publish for it, with stores that stay in a buffer for some time.
 *
 * Two operations. Thread 0 submits both, then waits for the first, patiently or
 * not, and may never look at the second; thread 1 (-DSECOND) may wait for the
 * second; thread 2 is the progress thread. Two peers each publish what one operation
 * needs, once it has arrived, and wake the rank by Board::WakeRank.
 *
 * Every thread's stores of `sleeping` and every peer's publication go through a
 * store buffer of one entry, flushed at any time; a fence, a locked instruction
 * and a mutex wait until it is empty. (-DDIRECT: no buffers, for size.) Futex waits have no bound here: progress
 * that the code would only find after its bound of 100 ms is a lost wake-up.
 *
 * Here the drive mutex would suffice as the sleeper's fence; on machines other
 * than x86 an earlier store may pass a mutex.
 *
 * Claim: when no process can move any more, every published operation has been
 * delivered, and no waiter whose operation has ended still sleeps.
 *
 * Mutants: NO_WAKER_FENCE, NO_SECOND_LOOK, SEEN_LATE,
 * NO_FLAG_AT_SUBMIT, STOP_WITHOUT_FLAG, NO_WAKE_OF_OWN,
 * SUBMIT_AS_WAITER, STOP_AS_WAITER.
 */
#define OPERATIONS 2
#define THREADS 3
#define PROGRESS 2
#define NONE 3

/* Values of `sleeping`: whoever sleeps is woken; only threads that wait. */
#define RANK_SLEEPS 1
#define WAITERS_SLEEP 2

/* The rank's words on the board. */
bool changed[THREADS]; /* `wake` has changed since the thread read it */
byte sleeping;
bool arrived[OPERATIONS];
bool published[OPERATIONS];

/* Store buffers. */
byte sleeping_buffer[THREADS] = NONE;
bool published_buffer[OPERATIONS];
#ifdef DIRECT
#define FENCE(thread) true
#else
#define FENCE(thread) (sleeping_buffer[thread] == NONE)
#endif

/* Private state of the process. */
bool busy;       /* drive mutex */
byte waiters, outstanding;
bool done[OPERATIONS];
bool in_futex[THREADS];
bool moved[THREADS];
byte idle; /* threads that have nothing more to do */

inline store_sleeping(value) {
#ifdef DIRECT
  sleeping = value
#else
  FENCE(me); /* one entry */
  sleeping_buffer[me] = value
#endif
}

inline fence() { FENCE(me) }

inline futex_wake_waiters() {
  in_futex[0] = false;
  in_futex[1] = false
}

inline futex_wake() {
  futex_wake_waiters();
  in_futex[2] = false
}

inline bump_wake() {
  changed[0] = true;
  changed[1] = true;
  changed[2] = true
}

inline wake_own_threads() {
  atomic { FENCE(me) -> bump_wake(); futex_wake() }
}

/* Drive(): delivers what has been published; waits_itself: the
 * thread is a waiter, which End() does not wake. */
inline deliver(n, waits_itself) {
  atomic {
    FENCE(me) ->
    if
    :: published[n] && !done[n] ->
       done[n] = true;
       moved[me] = true;
       outstanding--;
       ended = true
    :: else
    fi
  };
#ifndef NO_WAKE_OF_OWN
  if
  :: ended && waiters > waits_itself -> wake_own_threads()
  :: else
  fi;
#endif
  ended = false
}

inline drive(waits_itself) {
  atomic { FENCE(me) && !busy -> busy = true; moved[me] = false };
  deliver(0, waits_itself);
  deliver(1, waits_itself);
  atomic { FENCE(me) -> busy = false }
}

inline futex_wait() {
  atomic {
    FENCE(me);
    if
    :: !changed[me] -> in_futex[me] = true
    :: else
    fi
  };
  !in_futex[me]
}

inline raise_flag_and_look(who, waits_itself) {
  store_sleeping(who);
  fence();
#ifdef NO_SECOND_LOOK
  moved[me] = false
#else
  drive(waits_itself)
#endif
}

/* BoardCommunicator::Start of one operation by thread 0. */
inline submit(n) {
  atomic { FENCE(me); outstanding++ };
#ifndef NO_FLAG_AT_SUBMIT
  if
  :: waiters == 0 ->
#ifdef SUBMIT_AS_WAITER
     store_sleeping(WAITERS_SLEEP);
#else
     store_sleeping(RANK_SLEEPS);
#endif
     fence()
  :: else
  fi;
#endif
  arrived[n] = true
}

/* BoardCommunicator::SleepOnBoard. */
inline sleep_on_board(n) {
#ifndef SEEN_LATE
  changed[me] = false;
#endif
  raise_flag_and_look(WAITERS_SLEEP, 1);
#ifdef SEEN_LATE
  changed[me] = false;
#endif
  if
  :: !moved[me] && !done[n] -> futex_wait()
  :: else
  fi
}

/* BoardCommunicator::Await; patient: without a bound. */
inline await(n, patient) {
  if
  :: done[n]
  :: else ->
     atomic { FENCE(me); waiters++ };
     store_sleeping(0);
     do
     :: done[n] -> break
     :: !patient -> break /* the time is up */
     :: else ->
        drive(1);
        if
        :: moved[me] || done[n]
        :: else -> sleep_on_board(n); store_sleeping(0)
        fi
     od;
     /* StopAttending */
     atomic { FENCE(me); waiters--; others = waiters > 0 };
     if
     :: !others && outstanding == 0
     :: else ->
#ifdef STOP_WITHOUT_FLAG
        drive(0);
#elif defined(STOP_AS_WAITER)
        raise_flag_and_look(WAITERS_SLEEP, 0);
#else
        raise_flag_and_look(RANK_SLEEPS, 0);
#endif
        if
        :: moved[me] -> wake_own_threads()
        :: else
        fi
     fi
  fi
}

active proctype Main() {
  byte me = 0;
  bool others, ended;
  submit(0);
  submit(1);
#ifdef SECOND
  await(0, true);
#else
  if
  :: true -> await(0, true)
  :: true -> await(0, false)
  :: true /* computes */
  fi;
#endif
  idle++
}

#ifdef SECOND
active proctype Second() {
  byte me = 1;
  bool others, ended;
  arrived[1];
  await(1, true);
  idle++
}
#define LOOKERS 2
#else
#define LOOKERS 1
#endif

active proctype Progress() {
  byte me = PROGRESS;
  bool ended;
end:
  do
  :: true ->
     moved[me] = false;
     if
     :: waiters == 0 && outstanding > 0 -> drive(0)
     :: else
     fi;
     if
     :: moved[me]
     :: else ->
        /* Park */
#ifndef SEEN_LATE
        changed[me] = false;
#endif
        if
        :: waiters == 0 && outstanding > 0 ->
           raise_flag_and_look(RANK_SLEEPS, 0)
        :: else -> moved[me] = false
        fi;
#ifdef SEEN_LATE
        changed[me] = false;
#endif
        if
        :: moved[me]
        :: else ->
           atomic {
             FENCE(me);
             if
             :: !changed[me] -> in_futex[me] = true
             :: else
             fi
           };
end_parked:
           !in_futex[me]
        fi
     fi
  od
}

proctype Peer(byte n) {
  byte who = 0;
  arrived[n];
#ifdef DIRECT
  published[n] = true;
#else
  published_buffer[n] = true;
#ifndef NO_WAKER_FENCE
  !published_buffer[n]; /* fence */
#endif
#endif
  if
  :: sleeping == 0
  :: else ->
     /* the exchange is locked: it empties the buffer */
     atomic {
       !published_buffer[n];
       if
       :: sleeping != 0 -> who = sleeping; sleeping = 0
       :: else
       fi
     };
     if
     :: who == RANK_SLEEPS -> atomic { bump_wake() }; atomic { futex_wake() }
     :: who == WAITERS_SLEEP ->
        atomic { bump_wake() }; atomic { futex_wake_waiters() }
     :: else
     fi
  fi
}

#ifndef DIRECT
/* The buffers are flushed at some time, in any order between the threads. */
active proctype Buffers() {
end:
  do
  :: atomic {
       sleeping_buffer[0] != NONE ->
       sleeping = sleeping_buffer[0]; sleeping_buffer[0] = NONE
     }
  :: atomic {
       sleeping_buffer[1] != NONE ->
       sleeping = sleeping_buffer[1]; sleeping_buffer[1] = NONE
     }
  :: atomic {
       sleeping_buffer[2] != NONE ->
       sleeping = sleeping_buffer[2]; sleeping_buffer[2] = NONE
     }
  :: atomic {
       published_buffer[0] -> published[0] = true; published_buffer[0] = false
     }
  :: atomic {
       published_buffer[1] -> published[1] = true; published_buffer[1] = false
     }
  od
}

/* When nothing else can run. */
#endif

init {
  atomic { run Peer(0); run Peer(1) };
  timeout -> assert(idle == LOOKERS && done[0] && done[1])
}
