# Cross-compiles for 64-bit ARM against the Debian packages that scripts/test_arm.sh unpacks into MOETRAIN_ARM_SYSROOT.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MOETRAIN_ARM_SYSROOT)
set(CMAKE_SYSROOT ${MOETRAIN_ARM_SYSROOT})
set(CMAKE_FIND_ROOT_PATH ${CMAKE_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR}
    ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT})

# The compiler wrappers of MPI here know this machine's paths only.
set(openmpi ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/openmpi)
set(MPI_C_COMPILER NOTFOUND CACHE STRING "")
set(MPI_C_COMPILER_INCLUDE_DIRS ${openmpi}/include CACHE STRING "")
set(MPI_C_HEADER_DIR ${openmpi}/include CACHE STRING "")
set(MPI_C_LIB_NAMES mpi CACHE STRING "")
set(MPI_mpi_LIBRARY ${openmpi}/lib/libmpi.so CACHE STRING "")
