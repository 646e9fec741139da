// The stub of CUDA's toolkit, which programs link against: every function fails.
enum { kStubLibrary = 34 };

int cuInit(unsigned flags) {
  (void)flags;
  return kStubLibrary;
}

int cuDriverGetVersion(int* version) {
  (void)version;
  return kStubLibrary;
}

int cuGetProcAddress_v2(const char* name, void** function, int version,
                        unsigned long long flags, int* status) {
  (void)name, (void)function, (void)version, (void)flags, (void)status;
  return kStubLibrary;
}
