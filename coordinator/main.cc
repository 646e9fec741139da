#include "coordinator/program.h"

int main(int argc, char** argv) {
  return maypole::coordinator::Main({argv + 1, argv + argc});
}
