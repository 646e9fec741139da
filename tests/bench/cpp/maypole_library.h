// MaypoleLibrary: Maypole as a Library, by its C++ API.
//
// Thread contract: as Library.
#ifndef MAYPOLE_TESTS_BENCH_CPP_MAYPOLE_LIBRARY_H_
#define MAYPOLE_TESTS_BENCH_CPP_MAYPOLE_LIBRARY_H_

#include <memory>
#include <utility>
#include <vector>

#include "client/api/client.h"
#include "tests/bench/cpp/library.h"

namespace maypole::bench {

class MaypoleLibrary : public Library {
 public:
  // Joins the job that the environment names; blocks until all ranks have
  // joined.
  static Status Join(std::unique_ptr<MaypoleLibrary>* out);

  int rank() const override { return client_->options().rank; }
  int size() const override { return client_->options().size; }
  int nodes() const override { return client_->options().cross_size; }

  bool has_arena() const override { return true; }
  int64_t arena_operations() const override {
    return client_->counters().arena_operations.load();
  }
  Status Allocate(Storage storage, int64_t elements, Memory* out) override;

  Status Barrier() override;
  Status Allreduce(const std::vector<Buffer>& buffers) override;
  Status Gather(const std::vector<double>& mine,
                std::vector<double>* all) override;

 private:
  explicit MaypoleLibrary(std::unique_ptr<Client> client)
      : client_(std::move(client)) {}

  Status Submit(const Buffer& buffer, bool awaited);
  // Waits for all of handles_ and releases them; the first error.
  Status Finish();

  std::unique_ptr<Client> client_;
  std::vector<int64_t> handles_;  // in order of submission
};

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CPP_MAYPOLE_LIBRARY_H_
