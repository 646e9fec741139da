"""How the installed programs are linked."""

# A wheel has the libraries of the programs in lib/bundled, and they must be
# found before what LD_LIBRARY_PATH names. DT_RPATH, unlike DT_RUNPATH, is
# searched first, and for the libraries of the libraries, too. Where there is no
# such directory, it has no effect.
PROGRAM_LINKOPTS = ["-Wl,--disable-new-dtags,-rpath,$$ORIGIN/../lib/bundled"]
