// ElasticWorld: one simulated run of an elastic job.
//
// Purpose: maypolerun's driver starts processes on hosts that come, fail, flap
// and go; the processes train through the seed's faults. The run ends with the
// job: well, after the last step, or badly, with a reason that is true. Then
// nothing may be left behind.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_ELASTIC_WORLD_H_
#define MAYPOLE_TESTS_SIMULATION_ELASTIC_WORLD_H_

#include "tests/simulation/world.h"

namespace maypole::simulation {

// Plays an elastic job from the seed.
RunResult PlayElastic(const RunOptions& options);

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_ELASTIC_WORLD_H_
