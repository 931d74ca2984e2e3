# SPDX-License-Identifier: MIT
"""The system's oneTBB as a Conan package, for machines that cannot reach Conan Center."""
from conan import ConanFile


class OneTbb(ConanFile):
    name, version = "onetbb", "2021.8.0"

    def package_info(self):
        self.cpp_info.system_libs = ["tbb"]
        self.cpp_info.includedirs = []
        self.cpp_info.set_property("cmake_file_name", "TBB")
        self.cpp_info.set_property("cmake_target_name", "TBB::tbb")
