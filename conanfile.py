# SPDX-License-Identifier: MIT
"""Conan recipe: `conan create .`, then requires weft/0.1.0 and find_package(weft), whose targets are those of `cmake --install`.
Kernels run in parallel with the option tbb, the default; other components are not in the package."""
import pathlib
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain
from conan.tools.files import copy


class Weft(ConanFile):
    name = "weft"
    description = "Tensors with compile-time graphs, gradients and parallel training"
    license = "MIT"
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"tbb": [True, False]}
    default_options = {"tbb": True}
    exports_sources = "CMakeLists.txt", "LICENSE", "include/*"

    def set_version(self):
        text = (pathlib.Path(self.recipe_folder) / "include/weft/base/config.hpp").read_text()
        self.version = ".".join(re.search(f"WEFT_VERSION_{part} (\\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))

    def requirements(self):
        if self.options.tbb:
            self.requires("onetbb/[>=2021.8]", transitive_headers=True, transitive_libs=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        tools = CMakeToolchain(self)
        for part in "TESTS", "EXAMPLES":
            tools.cache_variables[f"WEFT_BUILD_{part}"] = "OFF"
        for component in "OPENCL", "CUDA", "NCCL", "MPI", "GLOO":
            tools.cache_variables[f"WEFT_WITH_{component}"] = "OFF"
        tools.cache_variables["WEFT_WITH_TBB"] = "ON" if self.options.tbb else "OFF"
        tools.generate()
        CMakeDeps(self).generate()

    def package_id(self):
        self.info.settings.clear()

    def package(self):
        copy(self, "LICENSE", self.source_folder, pathlib.Path(self.package_folder) / "licenses")
        cmake = CMake(self)
        cmake.configure()
        cmake.install()

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        self.cpp_info.set_property("cmake_find_mode", "none")  # weftConfig.cmake is in the package
        self.cpp_info.builddirs = ["share/weft/cmake"]
