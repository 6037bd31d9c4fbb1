// Writes a number of blocks of the given size to a file and syncs it: `writer FILE BLOCKS KIB`, or
// syncs after each block: `writer FILE BLOCKS KIB each`. Prints the duration in milliseconds, or
// the error.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	pieces, _ := strconv.Atoi(os.Args[2])
	kibibytes, _ := strconv.Atoi(os.Args[3])
	file, err := os.Create(os.Args[1])
	if err != nil {
		fail(err)
	}
	piece := make([]byte, kibibytes<<10)
	began := time.Now()
	for number := 1; number <= pieces; number++ {
		if _, err := file.Write(piece); err != nil {
			fail(err)
		}
		if len(os.Args) > 4 || number == pieces {
			if err := file.Sync(); err != nil {
				fail(err)
			}
		}
	}
	fmt.Println("milliseconds:", time.Since(began).Milliseconds())
}

func fail(err error) {
	fmt.Println("failed:", err)
	os.Exit(1)
}
