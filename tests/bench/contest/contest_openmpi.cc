// contest_openmpi: MPI_Allreduce, as a contestant. See contest.h.
#include <mpi.h>

#include <string>

#include "tests/bench/contest/contest.h"

namespace maypole::bench {
namespace {

class MpiReducer : public Reducer {
 public:
  MpiReducer() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // One after the other, blocking: as most MPI programs do.
  Status Allreduce(const std::vector<Buffer>& buffers) override {
    for (auto b = buffers.rbegin(); b != buffers.rend(); ++b) {
      const int error = MPI_Allreduce(MPI_IN_PLACE, b->data.data(),
                                      static_cast<int>(b->data.size()),
                                      MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (error == MPI_SUCCESS) continue;
      char text[MPI_MAX_ERROR_STRING] = {};
      int length = 0;
      MPI_Error_string(error, text, &length);
      return Status(Code::kInternal, "MPI_Allreduce of " + b->name + ": " +
                                         std::string(text, length));
    }
    return Status();
  }

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace
}  // namespace maypole::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 0;
  {
    maypole::bench::MpiReducer reducer;
    status = maypole::bench::RunContest(&reducer);
  }
  // After an error others may be inside MPI, where Finalize would wait.
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return 0;
}
