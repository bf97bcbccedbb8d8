// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "core/utf8.h"

namespace msa {
namespace {

TEST(Utf8, WellFormedTextsStayAsTheyAre) {
    for (const std::string words : {"", "plain", "caf\xc3\xa9", "\xed\x9f\xbf\xee\x80\x80",
                                    "\xf0\x9f\xa6\x80", "\xf4\x8f\xbf\xbf"}) {
        EXPECT_EQ(valid_utf8(words), words);
        EXPECT_EQ(printable(words), words);
    }
    EXPECT_EQ(valid_utf8("a\x1b[31m\n"), "a\x1b[31m\n");
}

TEST(Utf8, OtherBytesAreEscapedOneByOne) {
    EXPECT_EQ(valid_utf8("a\xff"
                         "b"),
              "a\\xffb");
    EXPECT_EQ(valid_utf8("\x80"), "\\x80");  // continues nothing
    EXPECT_EQ(valid_utf8("\xc3"), "\\xc3");  // cut off
    EXPECT_EQ(valid_utf8("\xc3("
                         "\xc3\xa9"),
              "\\xc3(\xc3\xa9");
    EXPECT_EQ(valid_utf8("\xc0\xaf"), "\\xc0\\xaf");  // longer than needed
    EXPECT_EQ(valid_utf8("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");
    EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
    EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
}

TEST(Utf8, WhatATerminalObeysIsEscapedForIt) {
    EXPECT_EQ(printable("a\x1b[31m"), "a\\x1b[31m");
    EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
    EXPECT_EQ(printable("\x7f\r\n"), "\\x7f\\x0d\\x0a");
    EXPECT_EQ(printable("\xc2\x9b"
                        "1m"),
              "\\xc2\\x9b1m");  // U+009B begins a command too
    EXPECT_EQ(printable("a\n\tb\r", "\n\t"), "a\n\tb\\x0d");
}

}  // namespace
}  // namespace msa
