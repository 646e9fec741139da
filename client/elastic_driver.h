/* maypolerun's policy for elastic jobs, for other launchers (maypole.ray and
 * maypole.spark): it decides on which hosts processes run, when one is
 * restarted, and when and how the job ends.
 *
 * The rules are those of client/launcher/elastic/elastic_driver.h. Events in,
 * actions out: nothing here has a thread, a clock or a socket. The Python
 * package of the same version uses it (maypole/common/elastic_driver.py); it is
 * not a part of the ABI that maypole.h promises.
 *
 *   maypole_elastic_driver* d = maypole_elastic_driver_new(&settings);
 *   maypole_elastic_driver_on_hosts(d, 2, names, slots, now);
 *   while (maypole_elastic_driver_next(d, &action)) Do(&action);
 *
 * Thread contract: one thread at a time uses a driver. Times are the caller's,
 * in seconds.
 */
#ifndef MAYPOLE_ELASTIC_DRIVER_H_
#define MAYPOLE_ELASTIC_DRIVER_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int32_t first_size; /* processes of the first start */
  int32_t min_size;
  int32_t max_size;
  int32_t reset_limit; /* changes; -1: any number */
  double patience;     /* how long there may be fewer than min_size slots */
  double shortest_cooldown;
  double longest_cooldown;
} maypole_elastic_settings;

typedef enum {
  MAYPOLE_START_NODE = 0,     /* node, on the host `text` */
  MAYPOLE_STOP_NODE = 1,      /* node */
  MAYPOLE_START_PROCESS = 2,  /* process, on node; value: the host's slot */
  MAYPOLE_SIGNAL_PROCESS = 3, /* process; value: the signal */
  MAYPOLE_TELL = 4,           /* text: a line for the user */
  MAYPOLE_PROCESS_FAILED = 5, /* process: its end makes the job fail */
  MAYPOLE_END_BADLY = 6,      /* text: why; there are no actions after it */
} maypole_elastic_action_kind;

typedef struct {
  int32_t kind;
  int32_t node;
  int32_t process;
  int32_t value;
  const char* text; /* valid until the next call with this driver */
} maypole_elastic_action;

typedef struct maypole_elastic_driver maypole_elastic_driver;

maypole_elastic_driver* maypole_elastic_driver_new(
    const maypole_elastic_settings* settings);
void maypole_elastic_driver_free(maypole_elastic_driver* driver);

/* Events. */
void maypole_elastic_driver_on_hosts(maypole_elastic_driver* driver,
                                     int32_t count, const char* const* names,
                                     const int32_t* slots, double now);
void maypole_elastic_driver_on_node_ready(maypole_elastic_driver* driver,
                                          int32_t node, double now);
void maypole_elastic_driver_on_node_lost(maypole_elastic_driver* driver,
                                         int32_t node, const char* why,
                                         double now);
/* status: the exit code, or the signal as a negative number. finished: it had
 * trained to the end. how: describes the end in messages; NULL: derived from
 * the status. */
void maypole_elastic_driver_on_process_end(maypole_elastic_driver* driver,
                                           int32_t process, int32_t status,
                                           int finished, const char* how,
                                           double now);
void maypole_elastic_driver_on_time(maypole_elastic_driver* driver, double now);

/* Takes the next action that the events have caused; returns 0 if there is
 * none. */
int maypole_elastic_driver_next(maypole_elastic_driver* driver,
                                maypole_elastic_action* action);
/* Whether a process has trained to the end; from then on none is started. */
int maypole_elastic_driver_finishing(const maypole_elastic_driver* driver);
/* How many processes have not ended. */
int maypole_elastic_driver_running(const maypole_elastic_driver* driver);

#ifdef __cplusplus
}
#endif

#endif /* MAYPOLE_ELASTIC_DRIVER_H_ */
