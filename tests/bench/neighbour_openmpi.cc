// Open MPI's part in neighbour_bench.py: allreduces of 4 B for the given number
// of seconds. Rank 0 prints how many cores all ranks used, then the
// microseconds of each of its allreduces, one per line.
//
//   mpirun -np 2 neighbour_openmpi 0.5
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

constexpr int kBlock = 64;  // allreduces between two looks at the clock

void Max(float* value) {
  MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
}

double CpuSeconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// All ranks make the same number of allreduces: rank 0 decides.
std::vector<double> Run(int rank, double seconds) {
  std::vector<double> times;
  float value = 1;
  float more = 1;
  double last = MPI_Wtime();
  const double end = last + seconds;
  while (more > 0) {
    for (int i = 0; i < kBlock; ++i) {
      Max(&value);
      const double now = MPI_Wtime();
      times.push_back(now - last);
      last = now;
    }
    more = rank == 0 && last < end ? 1.0f : 0.0f;
    Max(&more);
    last = MPI_Wtime();
  }
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  MPI_Barrier(MPI_COMM_WORLD);
  const double cpu = CpuSeconds();
  const double begin = MPI_Wtime();
  const std::vector<double> times = Run(rank, seconds);
  const double elapsed = MPI_Wtime() - begin;
  double mine = CpuSeconds() - cpu;
  double all = 0;
  MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("%.3f\n", all / elapsed);
    for (const double t : times) std::printf("%.3f\n", t * 1e6);
  }
  MPI_Finalize();
  return 0;
}
