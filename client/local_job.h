// LocalJob: a job of one rank. Operations end as they are submitted.
#ifndef MAYPOLE_CLIENT_LOCAL_JOB_H_
#define MAYPOLE_CLIENT_LOCAL_JOB_H_

#include "client/job.h"

namespace maypole {

class LocalJob : public Job {
 public:
  Status Start(std::shared_ptr<Operation> operation) override;
  void Poke(const Operation&) override {}
  Status Await(const Operation&, int) override { return Status(); }
  void Leave() override {}
  bool homogeneous() const override { return true; }
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_LOCAL_JOB_H_
