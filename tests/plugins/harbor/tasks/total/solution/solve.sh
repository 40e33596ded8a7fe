#!/bin/bash
echo $((17 + 25 + 58)) > /app/total.txt
