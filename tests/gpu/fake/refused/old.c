// The driver of CUDA 11: it has no cuGetProcAddress_v2.
int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}

int cuGetProcAddress(const char* name, void** function, int version,
                     unsigned long long flags) {
  (void)name, (void)version, (void)flags;
  *function = 0;
  return 500;  // CUDA_ERROR_NOT_FOUND
}
