// SPDX-License-Identifier: MIT
// The services of the fake driver for a kernel, apart from barriers: a struct that both declare, the kernel
// in its text.
#pragma once

#define FAKE_WARP_WORDS                                                                           \
  struct fake_warp_words {                                                                        \
    void (*meet)(const void* site, void* own, void (*together)(void** lanes));                    \
    void (*copy)(void* to, const void* from, unsigned there, unsigned bytes);                     \
    void (*commit)();                                                                             \
    void (*await)(unsigned left);                                                                 \
    void (*note)(const char* misuse);                                                             \
    char* memory;                                                                                 \
    unsigned long bytes;                                                                          \
  };
#define FAKE_TEXT_OF(...) #__VA_ARGS__
#define FAKE_TEXT(...) FAKE_TEXT_OF(__VA_ARGS__)
