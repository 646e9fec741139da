// The start of a program, for glibcs until 2.33: they left it to the program's
// own startup code (crt1.o) to call its constructors, and __libc_start_main got
// a function for that. Today's crt1.o passes none, because newer glibcs do it
// themselves; if they get a function, they call that instead.
//
// The linker's --wrap=__libc_start_main makes crt1.o call the function here.
#define HIDDEN __attribute__((visibility("hidden")))

typedef void Constructor(int, char**, char**);
extern Constructor* const __init_array_start[] HIDDEN;
extern Constructor* const __init_array_end[] HIDDEN;
extern void _init(void) HIDDEN;

int __real___libc_start_main(int (*main)(int, char**, char**), int argc,
                             char** argv, Constructor* init, void (*fini)(void),
                             void (*rtld_fini)(void), void* stack_end);

static void RunConstructors(int argc, char** argv, char** environment) {
  _init();
  for (Constructor* const* f = __init_array_start; f < __init_array_end; ++f) {
    (*f)(argc, argv, environment);
  }
}

// The dynamic linker calls the destructors.
static void DoNothing(void) {}

HIDDEN int __wrap___libc_start_main(int (*main)(int, char**, char**), int argc,
                                    char** argv, Constructor* init,
                                    void (*fini)(void), void (*rtld_fini)(void),
                                    void* stack_end) {
  (void)init;
  (void)fini;
  return __real___libc_start_main(main, argc, argv, RunConstructors, DoNothing,
                                  rtld_fini, stack_end);
}
