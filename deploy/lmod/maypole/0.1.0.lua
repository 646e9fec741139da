-- Lmod's modulefile of Maypole, installed by
--   pip install --no-deps --target /opt/maypole/0.1.0 maypole-0.1.0-*.whl
-- The name of this file is the version. It serves every Python from 3.9 on: nothing in the wheel is compiled for one.

help([[
Maypole averages gradients over all processes of a training job, with Horovod's interface:

    import maypole.torch as hvd           in the script
    maypolerun -np 4 python3 train.py     starts four ranks
    srun python3 train.py                 starts one per task of a Slurm job
]])

whatis("Name: Maypole")
whatis("Version: " .. myModuleVersion())
whatis("Category: library, machine learning")
whatis("Description: data-parallel training with PyTorch, TensorFlow, Keras, JAX and MXNet")

-- Another version of Maypole is unloaded by itself. Horovod's module would mix its libraries with the same names.
conflict("horovod")

local root = pathJoin(os.getenv("MAYPOLE_MODULE_PREFIX") or "/opt/maypole", myModuleVersion())
if mode() == "load" and not isFile(pathJoin(root, "maypole", "__init__.py")) then
   LmodError("there is no Maypole in " .. root .. ": install it there, or correct the path in " .. myFileName())
end

prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("PYTHONPATH", root)
-- For programs that use the C ABI (client/maypole.h).
setenv("MAYPOLE_LIBRARY", pathJoin(root, "maypole", "lib", "libmaypole.so"))
