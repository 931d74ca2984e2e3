// SPDX-License-Identifier: MIT
#include <weft/weft.hpp>
